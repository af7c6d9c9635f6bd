"""How `cpr-native plan` shows what it found: a table, sentences, a plot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from cpr_native.cli.output import console, new_table
from cpr_native.overhead import FailureFit, Plan, full_overhead, partial_overhead

if TYPE_CHECKING:
    from cpr_native.cli.plan_choices import Choice, Request

_LINES: Any = {"full": ("-", "#d55e00"), "partial": ((0, (6, 2)), "#0072b2")}


def show(
    request: Request,
    listed: list[Choice],
    loop: dict[str, Any],
    recommended: str,
    reason: str,
    fit: FailureFit | None,
) -> None:
    """Print the choices as a table and what follows from them as sentences."""
    table = new_table()
    table.add_column("strategy")
    names = ("every", "overhead", "5-95 % of jobs", "PLS exp.", "in job", "5-95 % of jobs", "over")
    for name in (*names, *(("written",) if request.tables is not None else ())):
        table.add_column(name, justify="right")
    for choice in listed:
        done = choice.simulated
        percent, pls = done["overhead_percent"], done["pls"]
        best = choice.strategy == recommended
        table.add_row(
            ("* " if best else "  ") + choice.strategy,
            f"{choice.interval_hours:.2f} h",
            f"{choice.overhead.percent(request.job.total_hours):.2f} %",
            f"{percent['p5']:.2f}-{percent['p95']:.2f} %",
            f"{choice.pls_expected:.4f}",
            f"{choice.pls_expected_job:.4f}",
            f"{pls['p5']:.3f}-{pls['p95']:.3f}",
            f"{100 * done['p_exceeds']:.0f} %",
            *(() if choice.bytes_written is None else (_size(choice.bytes_written),)),
            style="bold" if best else None,
        )
    out = console()
    out.print(table)
    out.print(Text(f"\nRecommended: {recommended}. {reason}"))
    out.print(Text(_loop_sentence(request, loop)))
    if fit is not None:
        out.print(Text(_fit_sentence(fit)))
    out.print(Text(
        "'over': jobs whose PLS is above the target. 'in job' corrects the paper's formula for the last "
        "interval, which the job's end cuts short."
    ))  # fmt: skip
    if request.tables is not None:
        out.print(Text(
            "PLS of mfu, ssu, random and delta_partial counts lost lookups; scar and drift rank by change, "
            "which `cpr-native emulate` measures: here they count like saves of everything."
        ))  # fmt: skip


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _loop_sentence(request: Request, loop: dict[str, Any]) -> str:
    done = loop["simulated"]
    kept, percent = 100 * (1 - done["p_exceeds"]), done["overhead_percent"]["mean"]
    text = (
        f"Target {request.target_pls:g}: the interval above keeps it in the mean, and "
        f"{100 * loop['open_p_exceeds']:.0f} % of jobs exceed it; a closed loop at probability "
        f"{loop['probability']:g} keeps it in {kept:.1f} % of jobs for {percent:.2f} % "
        f"({loop['extra_overhead_percent']:+.2f}), its first interval {loop['first_interval_hours']:.3g} h."
    )
    if not loop["feasible"]:
        text += " The probability is not reached even at that interval: feasible is a larger target."
    return text


def _fit_sentence(fit: FailureFit) -> str:
    text = (
        f"Failure log: {fit.failures} failures in {fit.observed_hours:.4g} h, MTBF {fit.mtbf_hours:.3g} h "
        f"(90 %: {fit.mtbf_low:.3g}-{fit.mtbf_high:.3g} h)"
    )
    if fit.gamma_shape is None:
        return f"{text}; too few to test the exponential law."
    law = "consistent with" if fit.exponential else "not"
    drawn = "" if fit.exponential else "; simulated jobs draw the recorded times"
    return (
        f"{text}; {law} exponential (gamma shape {fit.gamma_shape:.3g}, p = {fit.exponential_p:.2g}){drawn}."
    )


def plot(path: Path, request: Request, vanilla: Plan) -> None:
    """Draw the overhead against the interval to `path` (.svg or .png), readable without colour."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "--plot needs matplotlib: pip install 'cpr-native[demo]'", name=error.name
        ) from error
    job, costs = request.job, request.costs
    intervals = np.geomspace(min(costs.save, job.total_hours / 2), job.total_hours, 300)
    curves = {
        "full": [full_overhead(job, costs, hours).percent(job.total_hours) for hours in intervals],
        "partial": [partial_overhead(job, costs, hours).percent(job.total_hours) for hours in intervals],
    }
    with rc_context({"svg.hashsalt": "cpr-native", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, values in curves.items():
            line, colour = _LINES[name]
            axes.plot(intervals, values, linestyle=line, color=colour, label=f"{name} recovery")
        ends = {"full": vanilla.full, "partial": vanilla.partial}
        hours = {"full": vanilla.full_interval_hours, "partial": vanilla.partial_interval_hours}
        for name, marker in (("full", "o"), ("partial", "s")):
            percent = ends[name].percent(job.total_hours)
            axes.plot(
                hours[name],
                percent,
                marker,
                color="black",
                label=f"{name}: {hours[name]:.3g} h, {percent:.2f} %",
            )
        highest = 3 * max(ends[name].percent(job.total_hours) for name in ends)
        axes.set(
            xscale="log", xlabel="hours between saves", ylabel="overhead, % of the job", ylim=(0, highest)
        )
        axes.grid(color="#dddddd")
        axes.legend(frameon=False)
        figure.savefig(os.fspath(path), metadata={"Date": None} if path.suffix == ".svg" else None)
