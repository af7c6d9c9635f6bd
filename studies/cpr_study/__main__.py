"""`python -m cpr_study`: run the study and write docs/results/cpr.json, its page and plots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from study_common.pages import machine
from study_common.records import Records

from cpr_native.overhead import closed_loop_study, fit_failures, read_failure_log
from cpr_study.experiments import quality
from cpr_study.measured import configs, measure, overhead_percent
from cpr_study.quality import MOST_PAPER_SEEDS, decided
from cpr_study.results import write_results
from cpr_study.setups import CONFIGS
from cpr_study.study import FULL, SMALL, Size, run_cells, samples_of
from cpr_study.touched import touched_in_cells

ROOT = Path(__file__).resolve().parents[2]
MORE_SEEDS = 40
PAIRS = 3


@click.command()
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="A file in the raw Criteo format; without it samples are generated.")  # fmt: skip
@click.option("--failure-log", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="Recorded failures, as `cpr-native plan` takes them.")  # fmt: skip
@click.option("--small", is_flag=True, help="Few seeds and samples: shows that everything runs.")
@click.option("--records", "folder", type=click.Path(file_okay=False, path_type=Path), default=None,
              show_default="build/study/cpr, small: build/study/cpr-small",
              help="Finished units; a study that was stopped goes on from them.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=None,
              show_default="docs, small: build/study/docs",
              help="Where results, page and plots go.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=len(os.sched_getaffinity(0)),
              help="Units at a time.", show_default="the cores")  # fmt: skip
def main(
    data: Path | None, failure_log: Path | None, small: bool, folder: Path | None, out: Path | None,
    processes: int,
) -> None:  # fmt: skip
    """Run what has no record yet, then write the results."""
    size = SMALL if small else FULL
    build = ROOT / "build" / "study"
    records = Records(folder or build / ("cpr-small" if small else "cpr"))
    seconds = {name: _measured(name, records, small=small) for name in configs(small=small)}
    log = None if failure_log is None else read_failure_log(failure_log)
    run_cells(list(size.cells(log)), size, records, data, processes)
    if not small:
        _decide(size, records, data, processes)
    found = configs(small=small)
    jobs = 500 if small else 10_000
    samples = samples_of(size, data)
    extra = {
        "measured": {name: overhead_percent(found[name], seconds[name]) for name in found},
        "measured_seconds": seconds,
        "measured_factors": {name: found[name].factor for name in found},
        "touched": touched_in_cells(records, samples),
        "closed_loop": {name: closed_loop_study(preset, jobs=jobs) for name, preset in CONFIGS.items()},
        "machine": machine(),
        "data": _described(data, samples["paper"].described),
        "failure_log": None if failure_log is None else _log_described(failure_log),
        "command": "make study"
        + ("" if data is None else f" DATA={data.name}")
        + ("" if failure_log is None else f" FAILURES={failure_log.name}"),
    }
    write_results(records, out or (build / "docs" if small else ROOT / "docs"), extra)


def _measured(name: str, records: Records, *, small: bool) -> dict[str, Any]:
    """Return what saves and loads of a configuration cost, measured now unless there is a record."""
    made_from = f"{name} {small} {PAIRS}"
    record = records.read("measured", name, 0, made_from)
    if record is None:
        policies = measure(configs(small=small)[name], small=small, pairs=2 if small else PAIRS)
        record = {"made_from": made_from, "seed": 0, "policies": policies}
        records.write("measured", name, 0, record)
    found: dict[str, Any] = record["policies"]
    return found


def _decide(size: Size, records: Records, data: Path | None, processes: int) -> None:
    """Add seeds of the paper's set-up until its claims are decided."""
    seeds = size.paper_seeds
    while not decided(records.all("quality")) and seeds < MOST_PAPER_SEEDS:
        seeds = min(seeds + MORE_SEEDS, MOST_PAPER_SEEDS)
        cells = [cell for cell in quality(seeds, 0, 0) if cell.name == "paper"]
        run_cells(cells, size, records, data, processes)


def _log_described(path: Path) -> dict[str, Any]:
    fit = fit_failures(read_failure_log(path))
    return {"source": path.name, "failures": fit.failures, "gamma_shape": fit.gamma_shape}


def _described(data: Path | None, source: dict[str, object]) -> dict[str, object]:
    wanted = ("train_samples", "held_out_samples", "tables", "rows", "damaged_lines", "seed")
    kept = {name: source[name] for name in wanted if name in source}
    return {"source": "generated samples" if data is None else data.name, **kept}


if __name__ == "__main__":
    main()
