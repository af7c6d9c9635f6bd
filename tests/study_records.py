"""Records of a study that was never run: losses are planted, so that the right answers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study_common.records import Records

TOTAL = 100_000


def case(
    rng: np.random.Generator,
    base: float,
    progressive: float,
    *,
    spread: float = 2e-5,
    bytes_written: float = 8e6,
    failures: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """A case that loses `progressive` (and twice that of AUC), give or take `spread`."""
    loss = progressive + spread * float(rng.standard_normal())
    return {
        "auc": base - 2 * loss,
        "logloss": 0.5 + loss,
        "progressive": loss,
        "progressive_tenths": [loss / 10] * 10,
        "failures": list(failures) or [failure(samples=50_000, lookups=1e5, pls=0.05)],
        "bytes_written": bytes_written,
        "rows_written": bytes_written / 80,
        "saves": 8,
    }


def failure(*, samples: int, lookups: float, pls: float) -> dict[str, float]:
    return {
        "lookups": lookups, "drift": lookups / 10, "distance": lookups / 20, "count_distance": lookups / 3,
        "rows_changed": lookups / 5, "pls": pls, "samples": samples, "lookups_so_far": 26.0 * samples,
    }  # fmt: skip


def record(
    experiment: str, cell: str, seed: int, cases: Mapping[str, Any], *, setup: str = "stress", **more: Any
) -> dict[str, Any]:
    none = {
        "auc": 0.75, "logloss": 0.5, "progressive": 0.0, "progressive_tenths": [0.0] * 10, "failures": [],
        "bytes_written": 0, "rows_written": 0, "saves": 0,
    }  # fmt: skip
    return {
        "experiment": experiment, "cell": cell, "setup": setup, "settings": {}, "failures": ["28:1"],
        "job": {"total_hours": 56.0, "mtbf_hours": 28.0, "shards": 8}, "train_samples": TOTAL, "seed": seed,
        "first": 100, "samples": 40_000, "cases": {**cases, "none": none}, **more,
    }  # fmt: skip


def quality_records(
    losses: Mapping[str, float], seeds: int, *, cell: str = "stress", spread: float = 2e-5
) -> list[dict[str, Any]]:
    """Runs of the experiment on quality: `losses` planted by case."""
    records = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 1])
        cases = {name: case(rng, 0.75, loss, spread=spread) for name, loss in losses.items()}
        records.append(record("quality", cell, seed, cases, setup=cell))
    return records


STRESS_LOSSES = {
    "partial": 9e-4, "partial_small": 7e-4, "delta_partial": 1e-4, "mfu": 1e-4, "ssu": 1.5e-4, "scar": 1e-4,
    "drift": 1e-4, "random": 5e-4, "round_robin": 5e-4, "ssu_paper": 1.5e-4, "mfu_zeroed": 6e-4,
    "partial_zeroed": 15e-4, "noise": 0.0,
}  # fmt: skip
PAPER_LOSSES = {"partial": 4e-4, "random": 2e-4, "mfu": 2e-5, "ssu": 3e-5, "noise": 0.0}


def proxy_records(seeds: int, *, driven_by: str = "lookups") -> list[dict[str, Any]]:
    """Single failures whose loss follows one candidate, "lookups" or "pls", and not the other."""
    records = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 2])
        samples = int(TOTAL * (0.1 + 0.8 * (seed * 0.618 % 1)))
        cases = {}
        for number, name in enumerate(("partial", "random", "mfu")):
            drawn = {"lookups": float(rng.uniform(1e4, 1e6)), "pls": float(rng.uniform(0.01, 0.3))}
            loss = drawn[driven_by] / {"lookups": 1e6, "pls": 0.3}[driven_by] * 1e-3
            failures = [failure(samples=samples, **drawn)]
            cases[name] = case(rng, 0.75, loss + 1e-6 * number, failures=failures)
        records.append(record("proxy", "single", seed, cases))
    return records


def budget_records(seeds: int, priority_loss: float) -> dict[str, list[dict[str, Any]]]:
    """A delta that loses 8e-4 at 1 MB and half of it at each doubling, and MFU at 4 MB."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 3])
        for step in range(5):
            name, share = f"delta-{2.0**-step:g}", 2.0**-step
            loss = case(rng, 0.75, 8e-4 * share, spread=1e-6, bytes_written=1e6 / share)
            cells.setdefault(name, []).append(
                record("budget", name, seed, {"delta_partial": loss}, settings={"interval": share})
            )
        never = case(rng, 0.75, 2e-3, bytes_written=0)
        cells.setdefault("delta-2", []).append(
            record("budget", "delta-2", seed, {"delta_partial": never}, settings={"interval": 2.0})
        )
        mfu = case(rng, 0.75, priority_loss, spread=1e-6, bytes_written=4e6)
        cells.setdefault("fraction-0.125", []).append(
            record("budget", "fraction-0.125", seed, {"mfu": mfu}, settings={"fraction": 0.125})
        )
    return cells


def sensitivity_records(seeds: int) -> dict[str, list[dict[str, Any]]]:
    """Two numbers of failures, two kinds of times, and shards under both laws."""
    cells: dict[str, list[dict[str, Any]]] = {}

    def add(what: str, value: float | str, loss: float, job: Mapping[str, float]) -> None:
        name = f"{what}-{value}"
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 4])
            cases = {"partial": case(rng, 0.75, loss), "mfu": case(rng, 0.75, loss / 4)}
            cells.setdefault(name, []).append(
                record("sensitivity", name, seed, cases, settings={what: value}, job=job)
            )

    job = {"total_hours": 56.0, "mtbf_hours": 28.0, "shards": 8}
    for failures in (20, 2):
        add("failures", failures, 1e-4 * failures, {**job, "mtbf_hours": 56.0 / failures})
    for times in ("gamma-0.5", "exponential-1"):
        add("times", times, 3e-4, job)
    for shards in (64, 8):
        add("shards_constant", shards, 8e-4 / shards, {**job, "shards": shards})
        add("shards_inverse", shards, 8e-4 / shards, {**job, "shards": shards, "mtbf_hours": 224.0 / shards})
    return cells


CONTROL_LOSSES = {"partial": 9e-4, "partial_small": 5e-4, "random": 4e-4, "mfu": 1e-4, "ssu": 2e-4}


def control_records(seeds: int) -> list[dict[str, Any]]:
    """The controls: half of MFU's gain comes from the small tables."""
    records = []
    for cell in ("capped", "whole"):
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 5])
            cases = {name: case(rng, 0.75, loss, spread=1e-6) for name, loss in CONTROL_LOSSES.items()}
            records.append(record("controls", cell, seed, cases))
    return records


def write_all(folder: Path, seeds: int = 24) -> Records:
    """Write a record of every experiment."""
    records = Records(folder)
    units = [
        *quality_records(PAPER_LOSSES, seeds, cell="paper"),
        *quality_records(STRESS_LOSSES, seeds),
        *control_records(seeds),
        *proxy_records(seeds),
        *(unit for cell in budget_records(seeds, 1e-4).values() for unit in cell),
        *(unit for cell in sensitivity_records(seeds).values() for unit in cell),
    ]
    for unit in units:
        records.write(unit["experiment"], unit["cell"], unit["seed"], unit)
    return records


def _closed_point(p_exceeds: float, overhead: float, **more: float) -> dict[str, Any]:
    spread = {"mean": overhead, "p5": overhead / 2, "p95": overhead * 2}
    interval = [p_exceeds - 0.01, p_exceeds + 0.01]
    return {
        "p_exceeds": p_exceeds, "p_exceeds_ci95": interval, "overhead_percent": spread,
        "pls": {"mean": 0.08, "p5": 0.0, "p95": 0.2}, "saves": 1.0, **more,
    }  # fmt: skip


EXTRA: dict[str, Any] = {
    "measured": {"kaggle": {"mfu": 0.34, "ssu": 0.36}},
    "touched": {
        "quality": {
            "stress": {
                "every_samples": 10_000, "rows_touched": 30_000.0, "budget_rows": 10_000, "ratio": 3.0,
                "least_of_a_table": 2.5, "tables_binding": 7, "tables": 7, "void": False,
            }
        }
    },
    "closed_loop": {
        "kaggle": {
            "target_pls": 0.1, "jobs": 10_000, "open": _closed_point(0.352, 0.53, interval_hours=44.8),
            "open_curve": [
                _closed_point(0.6, 0.5, interval_hours=56.0), _closed_point(0.2, 0.7, interval_hours=28.0),
            ],
            "closed_curve": [_closed_point(0.05, 0.75, probability=0.95)],
            "closed_learning": [
                _closed_point(0.05, 0.8, probability=0.95), _closed_point(0.3, 0.6, probability=0.8),
            ],
        }
    },
    "failure_log": {"source": "seen.csv", "failures": 12, "gamma_shape": 0.5},
    "measured_factors": {"kaggle": 1.0, "terabyte": 3.0},
    "machine": {"cores": 2},
    "data": {"source": "planted"},
}  # fmt: skip
