"""Runs the cells of the study that have no record yet, a process a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from study_common.records import Records, fingerprint
from study_common.runner import Unit, run_pending

from cpr_native.overhead import FailureLog
from cpr_study.experiments import Cell, budgets, controls, proxies, quality, sensitivity
from cpr_study.runs import Run
from cpr_study.setups import SETUPS, Samples, read_samples


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a study is: seeds of each experiment, and the samples generated where there is no file."""

    paper_seeds: int
    terabyte_seeds: int
    stress_seeds: int
    control_seeds: int
    proxy_seeds: int
    cell_seeds: int
    samples: int
    small: bool

    def cells(self, log: FailureLog | None = None) -> Iterator[Cell]:
        """Return all cells; `log`: of recorded failures."""
        yield from quality(self.paper_seeds, self.stress_seeds, self.terabyte_seeds)
        yield from controls(self.control_seeds)
        yield from proxies(self.proxy_seeds)
        yield from budgets(self.cell_seeds, (0.125,) if self.small else (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2))
        yield from sensitivity(self.cell_seeds, small=self.small, log=log)


FULL = Size(
    paper_seeds=40, terabyte_seeds=12, stress_seeds=16, control_seeds=16, proxy_seeds=60, cell_seeds=6,
    samples=137_139, small=False,
)  # fmt: skip
SMALL = Size(
    paper_seeds=1, terabyte_seeds=1, stress_seeds=2, control_seeds=1, proxy_seeds=4, cell_seeds=1,
    samples=12_000, small=True,
)  # fmt: skip

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

    Units that are made from the same are run once.

    Raises:
        OSError: the data cannot be read or a record not be written.
    """
    samples_of(size, data)
    _cells.update({(cell.experiment, cell.name): cell for cell in cells})
    units = [(cell.experiment, cell.name, seed) for cell in cells for seed in cell.seeds]
    missing = [unit for unit in units if records.read(*unit, _made_from(*unit)) is None]
    pending: dict[str, list[Unit]] = {}
    for unit in missing:
        pending.setdefault(_made_from(*unit), []).append(unit)
    run_pending(
        pending, _unit, lambda unit, record: records.write(*unit, {**record, **_named(*unit)}),
        total=len(units), processes=processes,
    )  # fmt: skip


def _made_from(experiment: str, name: str, seed: int) -> str:
    cell = _cells[experiment, name]
    samples = _samples[cell.setup.name]
    return fingerprint(
        cell.setup, cell.job, cell.cases(seed), cell.failures(seed), cell.noise, samples.described, seed
    )


def _named(experiment: str, name: str, seed: int) -> dict[str, Any]:
    """Return what a record says of the unit it is for."""
    cell = _cells[experiment, name]
    return {
        "made_from": _made_from(experiment, name, seed), "experiment": experiment, "cell": name,
        "settings": dict(cell.settings),
    }  # fmt: skip


def _unit(unit: Unit) -> dict[str, Any]:
    experiment, name, seed = unit
    cell = _cells[experiment, name]
    run = Run(
        cell.setup, _samples[cell.setup.name], seed=seed, cases=cell.cases(seed),
        failures=cell.failures(seed), shards=cell.job.shards, noise=cell.noise,
    )  # fmt: skip
    return {
        "setup": cell.setup.name, "job": asdict(cell.job),
        "failures": [str(failure) for failure in cell.failures(seed)],
        "train_samples": _samples[cell.setup.name].count, **run(),
    }  # fmt: skip
