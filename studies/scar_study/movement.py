"""How a run moves: what share of its blocks does, and how far back along its way a perturbation sets it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scar_study.trunk import Arrays, Trunk

SPAN = 5
"""A step is a mean over so many iterations, which evens out what parts of the data do."""


def lag(trunk: Trunk, weights: Arrays, iteration: int) -> float:
    """Return by how many of its present steps `weights` are behind the trunk after `iteration` iterations.

    The perturbation's part along the step v, in lengths of v: <x - y, v> / <v, v>. If the iteration is
    linear, that part alone costs so many iterations, whatever the rate.
    """
    along, length = 0.0, 0.0
    for name, iterates in trunk.weights.items():
        step = _step(iterates, iteration)
        along += float(step @ (iterates[iteration].astype(np.float64) - weights[name]))
        length += float(step @ step)
    return along / length if length else 0.0


def spread(trunk: Trunk, iteration: int) -> float:
    """Return the share of the blocks that moves: (sum of lengths)^2 / (blocks * sum of squared lengths).

    It is 1 if all blocks move equally far in a step, and 1 / blocks if one alone moves. A policy that saves
    the blocks which moved farthest gains where it is small.
    """
    tables = trunk.tables[:1] if trunk.workload.aligned else trunk.tables
    steps = {name: _step(iterates, iteration) for name, iterates in trunk.weights.items()}
    lengths = np.concatenate([np.linalg.norm(table.of(steps[table.name]), axis=-1) for table in tables])
    squares = float(np.square(lengths).sum())
    return float(lengths.sum() ** 2 / squares / len(lengths)) if squares else 1.0


def _step(iterates: NDArray[np.float32], iteration: int) -> NDArray[np.float64]:
    """Return the mean step up to the one that comes next, [elements]."""
    first = max(0, iteration + 1 - SPAN)
    step: NDArray[np.float64] = iterates[iteration + 1].astype(np.float64) - iterates[first]
    return step / (iteration + 1 - first)
