"""Runs the cells of the study that have no record yet, a process a core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cpr_study.experiments import Cell, budgets, proxies, quality, sensitivity
from cpr_study.records import Records, fingerprint
from cpr_study.runs import Run
from cpr_study.setups import SETUPS, Samples, read_samples


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a study is: seeds of each experiment, and the samples generated where there is no file."""

    paper_seeds: int
    stress_seeds: int
    proxy_seeds: int
    cell_seeds: int
    samples: int
    small: bool

    def cells(self) -> Iterator[Cell]:
        """Return all cells."""
        yield from quality(self.paper_seeds, self.stress_seeds)
        yield from proxies(self.proxy_seeds)
        yield from budgets(self.cell_seeds, (0.125,) if self.small else (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2))
        yield from sensitivity(self.cell_seeds, small=self.small)


FULL = Size(paper_seeds=40, stress_seeds=16, proxy_seeds=60, cell_seeds=4, samples=137_139, small=False)
SMALL = Size(paper_seeds=1, stress_seeds=2, proxy_seeds=4, cell_seeds=1, samples=12_000, small=True)

# Read before the workers are forked, and inherited by them.
_samples: dict[str, Samples] = {}
_cells: dict[tuple[str, str], Cell] = {}


def samples_of(size: Size, data: Path | None) -> dict[str, Samples]:
    """Return the samples of every set-up, read at the first call."""
    for name, setup in SETUPS.items():
        if name not in _samples:
            _samples[name] = read_samples(setup, data, size.samples)
    return _samples


def run_cells(cells: Sequence[Cell], size: Size, records: Records, data: Path | None, processes: int) -> None:
    """Run every seed of every cell that has no record, and write one for each.

    Raises:
        OSError: the data cannot be read or a record not be written.
    """
    samples_of(size, data)
    _cells.update({(cell.experiment, cell.name): cell for cell in cells})
    units = [(cell.experiment, cell.name, seed) for cell in cells for seed in cell.seeds]
    pending = [unit for unit in units if records.read(*unit, _made_from(*unit)) is None]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("study", total=len(units), completed=len(units) - len(pending))
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(
            processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            futures = {pool.submit(_unit, *unit): unit for unit in pending}
            for future in as_completed(futures):
                experiment, name, seed = futures[future]
                records.write(experiment, name, seed, future.result())
                progress.update(task, advance=1, description=f"{experiment} {name}")


def _made_from(experiment: str, name: str, seed: int) -> str:
    cell = _cells[experiment, name]
    samples = _samples[cell.setup.name]
    return fingerprint(
        cell.setup, cell.job, cell.cases(seed), cell.failures(seed), cell.noise, samples.described
    )


def _unit(experiment: str, name: str, seed: int) -> dict[str, Any]:
    cell = _cells[experiment, name]
    run = Run(
        cell.setup, _samples[cell.setup.name], seed=seed, cases=cell.cases(seed),
        failures=cell.failures(seed), shards=cell.job.shards, noise=cell.noise,
    )  # fmt: skip
    record = run()
    return {
        "made_from": _made_from(experiment, name, seed), "experiment": experiment, "cell": name,
        "setup": cell.setup.name, "settings": dict(cell.settings), "job": asdict(cell.job),
        "failures": [str(failure) for failure in cell.failures(seed)],
        "train_samples": _samples[cell.setup.name].count, **record,
    }  # fmt: skip
