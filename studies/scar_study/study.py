"""Runs the units of the study that have no record yet, a process a core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from study_common.records import Records, fingerprint
from study_common.runner import Unit, run_pending

from scar_study.arms import INTERVAL, arms_of, failures
from scar_study.catalogue import NAMES, make
from scar_study.movement import spread
from scar_study.perturbations import compared
from scar_study.trunk import Trunk, grow
from scar_study.units import failed_after, rolled_back


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a study is.

    `trials`: at the paper's settings; `few`: at others; `perturbations`: of each kind; `names`: workloads;
    `bound`: those with one optimum, for which the bound speaks.
    """

    trials: int
    few: int
    perturbations: int
    names: tuple[str, ...] = NAMES
    bound: tuple[str, ...] = ("mlr-mnist", "mlr-covertype")


FULL = Size(trials=100, few=30, perturbations=30)
SMALL = Size(trials=2, few=1, perturbations=2, bound=("mlr-covertype",))

# Grown before the workers are forked, and inherited by them.
_trunks: dict[str, Trunk] = {}


def trunks_of(size: Size, data: Path | None) -> dict[str, Trunk]:
    """Return the trunk of every workload, grown at the first call."""
    torch.set_num_threads(1)  # bits may depend on it
    for name in size.names:
        if name not in _trunks:
            _trunks[name] = grow(make(name, data))
    return {name: _trunks[name] for name in size.names}


def units_of(size: Size, data: Path | None) -> Iterator[Unit]:
    """Return all units: the number of a failure is the iteration after which it happens."""
    for name, trunk in trunks_of(size, data).items():
        for iteration in sorted(set(failures(trunk.iterations, size.trials))):
            yield "failures", name, iteration
        yield "trunk", name, 0
        if name in size.bound:
            yield "bound", name, 0


def run_units(size: Size, records: Records, data: Path | None, processes: int) -> None:
    """Run every unit that has no record, and write one for each.

    Raises:
        OSError: data can't be read or a record not be written.
    """
    units = list(units_of(size, data))
    missing = [unit for unit in units if records.read(*unit, _made_from(unit, size)) is None]

    def write(unit: Unit, record: dict[str, Any]) -> None:
        records.write(*unit, {"made_from": _made_from(unit, size), "seed": unit[2], **record})

    run_pending(
        {unit: [unit] for unit in missing}, partial(_unit, size=size), write, total=len(units),
        processes=processes,
    )  # fmt: skip


def _made_from(unit: Unit, size: Size) -> str:
    experiment, name, _ = unit
    trunk = _trunks[name]
    wanted: tuple[object, ...] = (size.perturbations,) if experiment == "bound" else ()
    if experiment == "failures":
        wanted = (size.trials, size.few, list(arms_of(trunk)))
    return fingerprint(trunk.objective.tolist(), trunk.tables, trunk.iterations, *wanted)


def _unit(unit: Unit, size: Size) -> dict[str, Any]:
    experiment, name, iteration = unit
    trunk = _trunks[name]
    if experiment == "bound":
        return compared(trunk, size.perturbations)
    if experiment == "failures":
        return {"failures": failed_after(trunk, iteration, size.trials, size.few)}
    return _about(trunk)


def _about(trunk: Trunk) -> dict[str, Any]:
    workload, last = trunk.workload, trunk.iterations
    failed = last // 2 + INTERVAL // 4
    return {
        "workload": workload.name, "data": workload.data, "variant": workload.variant, "iterations": last,
        "size": workload.size, "target": trunk.target,
        "reached": trunk.reached, "objective": trunk.objective[: last + 1].tolist(),
        "blocks": sum(table.rows for table in (trunk.tables[:1] if workload.aligned else trunk.tables)),
        "numbers": sum(table.rows * table.dim for table in trunk.tables),
        "distance": workload.distance, "stochastic": workload.stochastic, "second": workload.second,
        "optimizer_state": bool(trunk.states), "spread": spread(trunk, last // 2),
        "rollback": {"failed": failed, "expected": failed % INTERVAL,
                     "measured": rolled_back(trunk, failed, INTERVAL)},
    }  # fmt: skip
