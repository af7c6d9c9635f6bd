"""`cpr-native plan`: how to save and recover one's own job."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from cpr_native import overhead
from cpr_native.cli.output import json_option, print_json, usage_errors
from cpr_native.cli.plan_choices import Request, choices, closed_loop, recommend
from cpr_native.cli.plan_output import plot, show
from cpr_native.cli.plan_tables import exponents_of_sample, parse_tables, with_skew
from cpr_native.overhead import (
    ClosedLoop,
    Costs,
    FailureFit,
    FailureTimes,
    Job,
    TableUse,
    fit_failures,
    read_failure_log,
)

_OPTIONS = {
    "total_hours": "--total",
    "mtbf_hours": "--mtbf",
    "shards": "--shards",
    "failed_shards": "--failed-shards",
    "save": "--save-cost",
    "save_fixed": "--save-fixed-cost",
    "load": "--load-cost",
    "reschedule": "--reschedule-cost",
    "target_pls": "--target-pls",
    "fraction": "--fraction",
    "probability": "--probability",
    "skew": "--skew",
    "exponent": "--skew",
}
_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


@click.command(
    epilog="Example, the emulated job of the CPR paper: cpr-native plan --shards 8 --mtbf 28 --total 56 "
    "--save-cost 0.094 --load-cost 0.045 --reschedule-cost 0.045 --target-pls 0.1"
)
@click.option("--shards", type=int, required=True, help="Shards that hold the embedding tables.")
@click.option("--mtbf", type=float, default=None, help="Mean time between failures, hours.")
@click.option("--failure-log", type=_FILE, default=None, metavar="CSV",
              help="Instead of --mtbf; has hours_between, failed_at_hours or failed_at.")  # fmt: skip
@click.option("--total", type=float, required=True, help="Length of the job without overhead, hours.")
@click.option("--save-cost", type=float, required=True, help="Training time lost to one full save, hours.")
@click.option("--save-fixed-cost", type=float, default=0.0, show_default=True,
              help="Part of it that does not shrink with the bytes saved, hours.")  # fmt: skip
@click.option("--load-cost", type=float, default=0.0, show_default=True,
              help="Loading after a failure, hours.")  # fmt: skip
@click.option("--reschedule-cost", type=float, default=0.0, show_default=True,
              help="Replacing the failed nodes, hours.")  # fmt: skip
@click.option("--failed-shards", type=int, default=1, show_default=True, help="Shards lost at a failure.")
@click.option("--target-pls", type=float, default=0.1, show_default=True,
              help="Budget for the portion of lost samples, 0 to 1.")  # fmt: skip
@click.option("--fraction", type=float, default=0.125, show_default=True,
              help="Rows in one priority save.")  # fmt: skip
@click.option("--probability", type=float, default=0.95, show_default=True,
              help="With which a closed loop keeps the final PLS within the target.")  # fmt: skip
@click.option("--tables", default=None, metavar="ROWSxDIM,...",
              help="Sizes of the tables, or a .csv file with columns rows and dim.")  # fmt: skip
@click.option("--samples", type=float, default=None, help="Samples of the whole job; --tables needs it.")
@click.option("--skew", default=None, metavar="A[,A...]",
              help="Zipf exponent of the lookups, one for all tables or one each (1.05).")  # fmt: skip
@click.option("--data", type=_FILE, default=None, metavar="PATH",
              help="Instead of --skew: a sample, raw Criteo or .npy [samples, tables] of ids.")  # fmt: skip
@click.option("--reattach-share", type=float, default=0.0, show_default=True,
              help="Share of the failures that leave the tables in memory, 0 to below 1.")  # fmt: skip
@click.option("--reattach-cost", type=float, default=0.0, show_default=True,
              help="Re-attaching to them, hours.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=100), default=2000, show_default=True,
              help="Jobs to simulate for the ranges.")  # fmt: skip
@click.option("--plot", "plot_to", type=click.Path(dir_okay=False, path_type=Path), default=None,
              metavar="FILE", help="Draw overhead against interval to a .svg or .png file.")  # fmt: skip
@json_option
def plan(as_json: bool, plot_to: Path | None, **values: Any) -> None:
    """Plan the checkpoints of a job: strategy, interval, overhead, and why."""
    if plot_to is not None and plot_to.suffix not in (".svg", ".png"):
        raise click.UsageError(f"--plot must end in .svg or .png, got {plot_to}")
    with usage_errors(**_OPTIONS):
        request, fit = _request(values)
        common = (request.job, request.costs, request.target_pls)
        vanilla = overhead.plan(*common)
        priority = overhead.plan(*common, fraction=request.fraction)
        ClosedLoop(probability=request.probability)
    listed = choices(request, vanilla)
    loop = closed_loop(request, next(choice for choice in listed if choice.strategy == "partial"))
    recommended, reason = recommend(request, vanilla, priority, listed)
    if plot_to is not None:
        plot(plot_to, request, vanilla)
    if not as_json:
        show(request, listed, loop, recommended, reason, fit)
        return
    total = request.job.total_hours
    print_json(
        {
            "job": dataclasses.asdict(request.job),
            "costs": dataclasses.asdict(request.costs),
            "target_pls": request.target_pls,
            "fraction": request.fraction,
            "recommended": recommended,
            "reason": reason,
            "strategies": [choice.to_dict(total) for choice in listed],
            "closed_loop": loop,
            "failure_log": None if fit is None else dataclasses.asdict(fit),
            "tables": [dataclasses.asdict(table) for table in request.tables or ()],
            "simulated_jobs": request.jobs,
        }
    )


def _request(values: dict[str, Any]) -> tuple[Request, FailureFit | None]:
    """Return what the options ask for, and what the failure log says where there is one; ValueError."""
    fit, mtbf, recorded = None, values["mtbf"], None
    if (mtbf is None) == (values["failure_log"] is None):
        raise ValueError("one of --mtbf and --failure-log must be given, and not both")
    if values["failure_log"] is not None:
        log = read_failure_log(values["failure_log"])
        fit = fit_failures(log)
        mtbf = fit.mtbf_hours
        recorded = None if fit.exponential else log.hours_between
    share = values["reattach_share"]
    if not 0 <= share < 1:
        raise ValueError(f"--reattach-share must be in [0, 1), got {share}; some failures lose their node")
    if not 0 <= values["reattach_cost"] < float("inf"):
        raise ValueError(f"--reattach-cost must be finite and at least 0, got {values['reattach_cost']}")
    shards, total = values["shards"], values["total"]
    Job(total_hours=total, mtbf_hours=mtbf, shards=shards)
    job = Job(
        total_hours=total, mtbf_hours=mtbf / (1 - share), shards=shards, failed_shards=values["failed_shards"]
    )
    costs = Costs(
        save=values["save_cost"],
        load=values["load_cost"],
        reschedule=values["reschedule_cost"],
        save_fixed=values["save_fixed_cost"],
    )
    stretched = None if recorded is None else tuple(hours / (1 - share) for hours in recorded)
    request = Request(
        job=job,
        costs=costs,
        target_pls=values["target_pls"],
        fraction=values["fraction"],
        probability=values["probability"],
        times=FailureTimes(mtbf_hours=job.mtbf_hours, recorded=stretched),
        jobs=values["jobs"],
        reattach_share=share,
        reattach_hours=values["reattach_cost"],
        tables=_tables(values),
        samples=values["samples"],
    )
    return request, fit


def _tables(values: dict[str, Any]) -> tuple[TableUse, ...] | None:
    if values["tables"] is None:
        given = [name for name in ("samples", "skew", "data") if values[name] is not None]
        if given:
            raise ValueError(f"--{given[0]} says how tables are used: --tables must be given too")
        return None
    samples = values["samples"]
    if samples is None or not 1 <= samples < float("inf"):
        raise ValueError(f"--samples must be given with --tables, finite and at least 1, got {samples}")
    if values["skew"] is not None and values["data"] is not None:
        raise ValueError("one of --skew and --data must be given, not both")
    sizes = parse_tables(values["tables"])
    if values["data"] is not None:
        return tuple(with_skew(sizes, exponents_of_sample(values["data"], sizes)))
    try:
        exponents = [float(part) for part in (values["skew"] or "1.05").split(",")]
    except ValueError:
        raise ValueError(f"--skew must be numbers separated by commas, got {values['skew']!r}") from None
    return tuple(with_skew(sizes, exponents))
