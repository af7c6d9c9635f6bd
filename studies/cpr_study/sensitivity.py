"""What the loss depends on: one thing varied at a time, and the number of shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from study_common.inference import summary

from cpr_native.overhead import (
    KAGGLE,
    Job,
    expected_pls_in_job,
    full_overhead,
    optimal_full_interval,
    partial_interval,
    partial_overhead,
)
from cpr_study.quality import auc_change, cases_of, column

Record = Mapping[str, Any]
Cells = Mapping[str, Sequence[Record]]

# What is varied, as the page calls it.
VARIED = {
    "failures": "failures in the run",
    "lost_percent": "shards lost at a failure, per cent",
    "target_pls": "target PLS",
    "fraction": "fraction r of a priority save",
    "ssu_period": "accesses for one that SSU samples",
    "ssu_capacity": "capacity of the SSU list, share of the rows",
    "failures_in_pairs": "failures in pairs",
    "times": "times of failures",
    "shards_constant": "shards, one MTBF for all",
    "shards_inverse": "shards, MTBF inverse to them",
}


def sensitivity(cells: Cells) -> dict[str, list[dict[str, Any]]]:
    """Return the points of everything that was varied, ascending, by what was varied."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, records in cells.items():
        what, value = next(iter(records[0]["settings"].items()))
        found.setdefault(what, []).append({"cell": cell, "value": value, **_point(records)})
    known = [what for what in VARIED if what in found]
    order = known + sorted(set(found) - set(known))
    return {what: sorted(found[what], key=lambda point: _order(point["value"])) for what in order}


def _order(value: float | str) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def job_of(record: Record) -> Job:
    """Return the job of a record."""
    return Job(**record["job"])


def _point(records: Sequence[Record]) -> dict[str, Any]:
    job = job_of(records[0])
    target = float(records[0]["settings"].get("target_pls", KAGGLE.target_pls))
    hours, capped = partial_interval(job, target)
    return {
        "interval_hours": hours,
        "capped": capped,
        "overhead_formula_percent": partial_overhead(job, KAGGLE.costs, hours).percent(job.total_hours),
        "seeds": len(records),
        "cases": {case: _case(records, case) for case in cases_of(records)},
    }


def _case(records: Sequence[Record], case: str) -> dict[str, Any]:
    progressive = summary(column(records, case, "progressive"))
    loss = summary(-auc_change(records, case))
    pls = summary(
        [sum(_lost(record, failure) for failure in record["cases"][case]["failures"]) for record in records]
    )
    return {
        "progressive": progressive["mean"], "progressive_ci95": progressive["ci95"],
        "auc_loss": loss["mean"], "auc_loss_ci95": loss["ci95"], "pls": pls["mean"], "pls_ci95": pls["ci95"],
        "bytes_written": float(column(records, case, "bytes_written").mean()),
        "saves": float(column(records, case, "saves").mean()),
    }  # fmt: skip


def _lost(record: Record, failure: Mapping[str, float]) -> float:
    """Return the lookups that a failure lost, as a share of all of the job."""
    lookups_of_a_sample = failure["lookups_so_far"] / failure["samples"]
    return failure["lookups"] / (lookups_of_a_sample * float(record["train_samples"]))


def scaling(cells: Cells) -> list[dict[str, Any]]:
    """Return overhead by the formula and loss by number of shards, for an MTBF that is constant or inverse.

    `saves_before_end`: whether vanilla saves at all before the job ends.
    """
    rows = []
    for what, points in sensitivity(cells).items():
        law = what.removeprefix("shards_")
        if law == what:
            continue
        for point in points:
            job = job_of(cells[point["cell"]][0])
            full = full_overhead(
                job, KAGGLE.costs, min(optimal_full_interval(job, KAGGLE.costs), job.total_hours)
            )
            rows.append({
                "law": law, "shards": job.shards, "mtbf_hours": job.mtbf_hours,
                "interval_hours": point["interval_hours"], "capped": point["capped"],
                "saves_before_end": point["interval_hours"] < job.total_hours,
                "overhead_formula_percent": point["overhead_formula_percent"],
                "full_formula_percent": full.percent(job.total_hours),
                "expected_pls": expected_pls_in_job(job, point["interval_hours"]),
                "cases": point["cases"], "seeds": point["seeds"],
            })  # fmt: skip
    return rows
