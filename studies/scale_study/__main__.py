"""`python -m scale_study`: overhead and PLS against the number of shards; writes docs/results/scale.json."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click
from study_common.inference import summary
from study_common.pages import machine, write_results
from study_common.records import Records, fingerprint
from study_common.runner import Unit, run_pending

from scale_study.page import write_page
from scale_study.units import SHARDS, STRATEGIES, Measured, run_unit

ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--cluster", type=click.Path(exists=True, dir_okay=False, path_type=Path), show_default=True,
              default=ROOT / "docs" / "results" / "cluster.json", help="The measured costs.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--samples", type=click.IntRange(min=1000), default=40_000, show_default=True)
@click.option("--most", type=click.IntRange(min=4), default=max(SHARDS), show_default=True,
              help="The most shards.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--records", type=click.Path(file_okay=False, path_type=Path),
              default=ROOT / "build" / "study" / "scale", help="Folder of finished jobs.")  # fmt: skip
@click.option("--docs", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "docs")
def main(
    cluster: Path, seeds: int, samples: int, most: int, processes: int, records: Path, docs: Path
) -> None:
    """Emulate jobs of 4 to 256 shards under full and partial recovery at a cluster's measured costs."""
    measured = Measured.read(json.loads(cluster.read_text(encoding="utf-8")))
    costs = measured.costs()
    done = Records(records)
    made_from = fingerprint(measured, costs, samples)
    cells = [(shards, strategy) for shards in SHARDS if shards <= most for strategy in STRATEGIES]
    units: list[Unit] = [(str(shards), name, seed + 1) for shards, name in cells for seed in range(seeds)]
    pending = {unit: [unit] for unit in units if done.read(*unit, made_from) is None}
    work = partial(run_unit, costs=costs, samples=samples)

    def write(unit: Unit, record: dict[str, Any]) -> None:
        done.write(*unit, {**record, "made_from": made_from})

    run_pending(pending, work, write, total=len(units), processes=processes)
    found = [done.read(*unit, made_from) or {} for unit in units]
    results = {
        "command": "make scale-study",
        "machine": machine(),
        "measured": vars(measured),
        "costs_hours": {name: getattr(costs, name) for name in ("save", "load", "reschedule")},
        "samples": samples,
        "seeds": seeds,
        "cells": [
            _cell(shards, strategy, [r for r in found if (r["shards"], r["strategy"]) == (shards, strategy)])
            for shards, strategy in cells
        ],
    }
    write_results(results, docs, "scale", write_page)


def _cell(shards: int, strategy: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    def mean(values: list[float]) -> dict[str, Any]:
        found = summary(values)
        return {"mean": found["mean"], "ci95": found["ci95"]}

    return {
        "shards": shards,
        "strategy": strategy,
        "overhead_percent": mean([run["overhead_percent"] for run in runs]),
        "parts_percent": {
            part: mean([run["parts_percent"][part] for run in runs])["mean"]
            for part in runs[0]["parts_percent"]
        },
        "pls": mean([run["pls"] for run in runs]),
        "pls_expected": runs[0]["pls_expected"],
        "saves": mean([run["saves"] for run in runs])["mean"],
        "auc": mean([run["auc"] for run in runs]),
    }


if __name__ == "__main__":
    main()
