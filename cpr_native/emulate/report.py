"""`report.html`: one self-contained page about one emulation."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from cpr_native.emulate.results import PARTS, Results, RunResult, write_text_atomically
from cpr_native.emulate.units import human_bytes

_TEMPLATE = "report.html.j2"


def require_demo_extra() -> None:
    """Check that the libraries of the report are installed.

    Raises:
        ModuleNotFoundError: one is missing; the message names it and how to install it.
    """
    for name in ("matplotlib", "jinja2"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f'the report needs {name}: install it with pip install "cpr-native[demo]"', name=name
            ) from None


def render_report(results: Results) -> str:
    """The page as text: plots inlined as SVG, no reference to anything outside itself.

    Args:
        results: as `run_emulation` returns them.

    Raises:
        ModuleNotFoundError: the extra `demo` is not installed.
    """
    require_demo_extra()
    import jinja2

    hours = float(results.config["total_hours"])
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = (resources.files("cpr_native.emulate") / "templates" / _TEMPLATE).read_text("utf-8")
    return environment.from_string(source).render(
        summary=_summary([run for run in results.runs if run.strategy != "none"], hours),
        figures=_figures(results, hours),
        runs=results.runs,
        parts=PARTS,
        hours=hours,
        bytes=human_bytes,
        sections=(("Settings", _flat(results.config)), ("Data", _flat(results.data))),
    )


def write_report(results: Results, path: str | os.PathLike[str]) -> None:
    """Write `report.html` atomically (see `render_report`).

    Raises:
        OSError: the file cannot be written; `filename` names it.
        ModuleNotFoundError: the extra `demo` is not installed.
    """
    write_text_atomically(render_report(results), path)


def _figures(results: Results, hours: float) -> list[dict[str, str]]:
    from cpr_native.emulate import charts

    target = float(results.config["target_pls"])
    reference = next((run for run in results.runs if run.strategy == "none"), None)
    failing = [run for run in results.runs if run.strategy != "none"]
    figures = []
    if failing:
        svg = charts.overhead_chart(failing, hours)
        expected = results.config["overhead_percent_expected"]
        note = (
            "What saving and recovering cost, by cause. Averaged over the times of failures, "
            f"full recovery costs {expected['full']:.2f} % and partial recovery {expected['partial']:.2f} %. "
            "The saves before the first and after the last step are not charged."
        )
        figures.append(_figure("Overhead", svg, _overhead_words(failing), note))
        if reference is not None:
            svg = charts.quality_chart(failing, reference)
            note = "One seed: differences of a few 0.0001 are within chance."
            figures.append(
                _figure("Quality against a run without failure", svg, _quality_words(failing), note)
            )
        svg = charts.pls_chart(failing, target, hours)
        note = "A failure adds the samples that the lost shards learnt since they were last saved."
        figures.append(_figure("Portion of lost samples (PLS)", svg, _pls_words(failing, target), note))
    svg = charts.timeline_chart(results.runs, hours)
    note = "Base: all rows; delta: every row changed since; priority: the rows chosen by the strategy."
    figures.append(_figure("Saves and failures", svg, _timeline_words(results.runs), note))
    return figures


def _figure(title: str, svg: str, words: str, note: str) -> dict[str, str]:
    return {"title": title, "svg": svg, "words": words, "note": note}


def _summary(runs: Sequence[RunResult], hours: float) -> str:
    if not runs:
        return f"A job of {hours:g} hours without failure."
    failures = max(len(run.failures) for run in runs)
    costs = ", ".join(f"{run.strategy} {run.overhead_percent:.2f} %" for run in runs)
    return f"A job of {hours:g} hours meets {failures} failure{'s' * (failures != 1)}. Overhead: {costs}."


def _overhead_words(runs: Sequence[RunResult]) -> str:
    return "Overhead in percent of the job's hours: " + "; ".join(
        f"{run.strategy} {run.overhead_percent:.2f} % ("
        + ", ".join(f"{part} {hours:.2f} h" for part, hours in asdict(run.overhead_hours).items())
        + ")"
        for run in runs
    )


def _quality_words(runs: Sequence[RunResult]) -> str:
    return "Quality on held-out samples: " + "; ".join(
        f"{run.strategy} AUC {run.auc:.4f}, log loss {run.logloss:.4f}" for run in runs
    )


def _pls_words(runs: Sequence[RunResult], target: float) -> str:
    return f"Portion of lost samples at the end against a budget of {target:g}: " + "; ".join(
        f"{run.strategy} {run.pls:.4f}, expected {run.pls_expected:.4f}" for run in runs
    )


def _timeline_words(runs: Sequence[RunResult]) -> str:
    return "Saves and failures over the job: " + "; ".join(
        f"{run.strategy} {run.commits} saves, failures at "
        + (", ".join(f"{failure.hour:.1f} h" for failure in run.failures) or "no time")
        for run in runs
    )


def _flat(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _words(value)) for name, value in values.items()]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
