"""`cpr-native plan`: how to save and recover one's own job."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
from rich.text import Text

from cpr_native import overhead
from cpr_native.cli.output import console, json_option, new_table, print_json, usage_errors
from cpr_native.overhead import Costs, Job, Overhead, Plan, Recovery

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
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Choice:
    """One way to run the job."""

    strategy: str
    recovery: Recovery
    interval_hours: float
    overhead: Overhead
    pls_expected: float
    pls_expected_job: float

    def to_dict(self, total_hours: float) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["overhead_hours"] = values.pop("overhead")
        values["overhead_percent"] = self.overhead.percent(total_hours)
        return values


@click.command(
    epilog="Example, the emulated job of the CPR paper: cpr-native plan --shards 8 --mtbf 28 --total 56 "
    "--save-cost 0.094 --load-cost 0.045 --reschedule-cost 0.045 --target-pls 0.1"
)
@click.option("--shards", type=int, required=True, help="Shards that hold the embedding tables.")
@click.option("--mtbf", type=float, required=True, help="Mean time between failures, hours.")
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
@json_option
def plan(
    shards: int,
    mtbf: float,
    total: float,
    save_cost: float,
    save_fixed_cost: float,
    load_cost: float,
    reschedule_cost: float,
    failed_shards: int,
    target_pls: float,
    fraction: float,
    as_json: bool,
) -> None:
    """Plan the checkpoints of a job: strategy, interval, overhead, and why."""
    with usage_errors(**_OPTIONS):
        job = Job(total_hours=total, mtbf_hours=mtbf, shards=shards, failed_shards=failed_shards)
        costs = Costs(save=save_cost, load=load_cost, reschedule=reschedule_cost, save_fixed=save_fixed_cost)
        vanilla = overhead.plan(job, costs, target_pls)
        priority = overhead.plan(job, costs, target_pls, fraction=fraction)
    choices = _choices(job, vanilla, priority, fraction)
    recommended, reason = _recommend(vanilla, priority, total)
    if as_json:
        print_json(
            {
                "job": dataclasses.asdict(job),
                "costs": dataclasses.asdict(costs),
                "target_pls": target_pls,
                "fraction": fraction,
                "recommended": recommended,
                "reason": reason,
                "strategies": [choice.to_dict(total) for choice in choices],
            }
        )
        return
    _print(choices, recommended, reason, total, target_pls)


def _choices(job: Job, vanilla: Plan, priority: Plan, fraction: float) -> list[_Choice]:
    cover = vanilla.partial_interval_hours
    pls, pls_job = overhead.expected_pls(job, cover), overhead.expected_pls_in_job(job, cover)
    full = _Choice(
        strategy="full", recovery="full", interval_hours=vanilla.full_interval_hours,
        overhead=vanilla.full, pls_expected=0.0, pls_expected_job=0.0,
    )  # fmt: skip
    partial = _Choice(
        strategy="partial", recovery="partial", interval_hours=cover, overhead=vanilla.partial,
        pls_expected=pls, pls_expected_job=pls_job,
    )  # fmt: skip
    chosen = dataclasses.replace(
        partial, strategy="mfu", interval_hours=fraction * cover, overhead=priority.partial
    )
    return [full, partial, chosen, dataclasses.replace(chosen, strategy="ssu")]


def _recommend(vanilla: Plan, priority: Plan, total: float) -> tuple[str, str]:
    if priority.strategy == "partial":
        return "ssu", (
            f"{priority.reason} Priority saving keeps that cost and saves the rows in use more often; "
            "ssu needs the least memory for it, mfu ranks the rows more exactly."
        )
    if vanilla.strategy == "partial":
        return "partial", (
            f"{vanilla.reason} Frequent priority saves would cost {priority.partial.percent(total):.2f} % "
            "because of the fixed cost of a save."
        )
    return "full", vanilla.reason


def _print(choices: list[_Choice], recommended: str, reason: str, total: float, target_pls: float) -> None:
    table = new_table()
    table.add_column("strategy")
    for name in ("every", "overhead", "save", "load", "lost", "reschedule", "PLS exp.", "in job"):
        table.add_column(name, justify="right")
    for choice in choices:
        hours = choice.overhead
        parts = (hours.save, hours.load, hours.lost, hours.reschedule)
        table.add_row(
            ("* " if choice.strategy == recommended else "  ") + choice.strategy,
            f"{choice.interval_hours:.2f} h",
            f"{hours.percent(total):.2f} %",
            *(f"{100 * part / total:.2f} %" for part in parts),
            f"{choice.pls_expected:.4f}",
            f"{choice.pls_expected_job:.4f}",
            style="bold" if choice.strategy == recommended else None,
        )
    out = console()
    out.print(table)
    out.print(Text(f"\nRecommended: {recommended}. {reason}"))
    out.print(
        Text(
            f"Budget: PLS {target_pls:g}. A mean, not a bound: about a third of jobs exceed it. "
            "'in job' corrects the paper's formula for the last interval, which the job's end cuts short."
        )
    )
