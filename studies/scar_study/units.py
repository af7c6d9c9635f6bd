"""A unit of the study: all failures of one workload after one iteration, as one stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scar_study.arms import FEW, RANDOM_SEEDS, Arm, arms_of, failures, trials_at
from scar_study.blocks import Mask, bounds, draw_lost
from scar_study.forks import Fork, Stack, costs, distance, run
from scar_study.history import saved_at
from scar_study.movement import lag
from scar_study.trunk import Trunk

LARGEST_STACK = 64


def failed_after(trunk: Trunk, iteration: int, trials: int, few: int) -> list[dict[str, Any]]:
    """Return what each failure after `iteration` iterations costs: an entry for each trial and arm."""
    entries: list[dict[str, Any]] = []
    forks: list[Fork] = []
    for trial in trials_at(failures(trunk.iterations, trials), iteration):
        for arm in arms_of(trunk):
            if arm.part in FEW and trial >= few:
                continue
            seed = trial % RANDOM_SEEDS if arm.policy == "random" else 0
            fork = Fork(
                lost=_lost(trunk, arm, trial), saved=history(trunk, arm, seed)[iteration], state=arm.state
            )
            weights = fork.weights(trunk, iteration)
            entries.append({
                "arm": arm.name, "trial": trial, "norm": distance(trunk, weights, iteration),
                "lag": lag(trunk, weights, iteration),
            })  # fmt: skip
            forks.append(fork)
    for first in range(0, len(forks), LARGEST_STACK):
        part = slice(first, first + LARGEST_STACK)
        for entry, cost in zip(entries[part], run(trunk, iteration, forks[part]), strict=True):
            entry["cost"] = cost
    return entries


def history(trunk: Trunk, arm: Arm, seed: int) -> NDArray[np.int32]:
    """Return what the arm's policy has saved, computed once."""
    policy = arm.make(trunk, seed)
    key = (policy, arm.saves_every())
    if key not in trunk.cache:
        trunk.cache[key] = saved_at(trunk, policy, arm.saves_every())
    return trunk.cache[key]


def _lost(trunk: Trunk, arm: Arm, trial: int) -> Mask:
    if arm.part == "null":
        share = 1.0 / (bounds(trunk.tables)[0 if trunk.workload.aligned else -1].stop)
        return draw_lost(trunk.tables, (share,), (1, trial), aligned=trunk.workload.aligned)[share]
    if not arm.of:
        return draw_lost(trunk.tables, (arm.lost,), (1, trial), aligned=trunk.workload.aligned)[arm.lost]
    lost = np.zeros(bounds(trunk.tables)[-1].stop, np.bool_)
    for table, place in zip(trunk.tables, bounds(trunk.tables), strict=True):
        if table.name == arm.of:
            lost[place] = draw_lost([table], (arm.lost,), (1, trial), aligned=False)[arm.lost]
    return lost


def rolled_back(trunk: Trunk, failed: int, interval: int) -> float | None:
    """Return what full recovery costs after `failed` iterations, by running it: one run goes back whole."""
    start = failed - failed % interval
    whole = np.zeros(bounds(trunk.tables)[-1].stop, np.bool_)
    fork = Fork(lost=whole, saved=np.zeros(len(whole), np.int32))
    stack = Stack(trunk, start, [fork.weights(trunk, start)], [fork.states(trunk, start)])
    found = costs(trunk, start, stack, 1)[0]
    return None if found is None else found + failed - start
