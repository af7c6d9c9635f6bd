"""Interval and fraction of the saves that make the expected overhead least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.iteration_cost._numbers import Range, check_number
from cpr_native.iteration_cost.prediction import perturbation_cost


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """What a save costs training, in seconds: `fixed` and, for the fraction r of the blocks, r * `full`.

    Raises ValueError below 0, or for a save that costs nothing.
    """

    fixed: float
    full: float

    def __post_init__(self) -> None:
        for name in ("fixed", "full"):
            check_number("SaveCost", name, getattr(self, name), positive=False)
        check_number("SaveCost", "fixed + full", self.fixed + self.full, positive=True)

    def seconds(self, fraction: float) -> float:
        """Return the cost of a save of `fraction`."""
        return self.fixed + fraction * self.full


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The chosen saves and what is expected of them.

    `interval`: iterations between saves; `fraction`: of the blocks a save takes; `iterations`: that a
    failure is expected to cost, with the range of the estimates; `saving`, `recovering`: share of training
    time, `overhead` their sum; `norm`: of the perturbation before blocks are lost.
    """

    interval: int
    fraction: float
    iterations: Range
    norm: float
    saving: float
    recovering: float

    @property
    def overhead(self) -> float:
        """Share of training time for saves and recoveries."""
        return self.saving + self.recovering


def choose(
    perturbations: NDArray[np.floating],
    *,
    intervals: Sequence[int],
    fractions: Sequence[float],
    c: float | Range,
    distance: float | Range,
    save: SaveCost,
    mtbf_seconds: float,
    seconds_per_iteration: float,
    lost_share: float,
    reload_seconds: float = 0.0,
) -> Choice:
    """Choose the interval and fraction of least expected overhead per second of training.

    overhead = save(r) / (I s) + (reload + s * cost(I, r)) / MTBF with cost = log(1 + sqrt(p) delta(I, r) /
    ||x - x*||) / log(1/c): the paper's bound for a perturbation of sqrt(E||delta'||^2) = sqrt(p) delta.

    `perturbations`: delta(I, r) = sqrt(E||delta||^2) of a failure at any time, all blocks lost, for each of
    `intervals` (iterations) and `fractions`, [intervals, fractions]: measured, or from `Movement`; `c`,
    `distance`: estimates, ||x - x*|| of now; `save`; `mtbf_seconds`; `seconds_per_iteration`: s;
    `lost_share`: p, of the blocks a failure takes; `reload_seconds`: of each recovery, reschedule included.
    Of equal overheads the longer interval is taken, then the larger fraction. Saves that would take longer
    than their interval are left out, unless all would. Raises ValueError.
    Source: Qiao et al., ICML 2019, for the bound; that it can drive the choice is said there and left open.
    """
    norms = np.asarray(perturbations, dtype=np.float64)
    if norms.shape != (len(intervals), len(fractions)) or not norms.size:
        raise ValueError(
            f"perturbations: expected one for each of {len(intervals)} intervals and {len(fractions)} "
            f"fractions, got {norms.shape}"
        )
    if min(intervals) < 1:
        raise ValueError(f"intervals must be at least 1 iteration, got {min(intervals)}")
    if not 0 < min(fractions) <= max(fractions) <= 1 or not 0 < lost_share <= 1:
        raise ValueError(f"fractions and lost_share must be in (0, 1], got {list(fractions)}, {lost_share}")
    for name, value in (("mtbf_seconds", mtbf_seconds), ("seconds_per_iteration", seconds_per_iteration)):
        check_number("choose", name, value, positive=True)
    check_number("choose", "reload_seconds", reload_seconds, positive=False)

    def option(i: int, j: int) -> Choice:
        cost = perturbation_cost(float(norms[i, j]) * lost_share**0.5, c=c, distance=distance)
        return Choice(
            interval=int(intervals[i]),
            fraction=float(fractions[j]),
            iterations=cost,
            norm=float(norms[i, j]),
            saving=save.seconds(fractions[j]) / (intervals[i] * seconds_per_iteration),
            recovering=(reload_seconds + seconds_per_iteration * cost.value) / mtbf_seconds,
        )

    options = [option(i, j) for i in range(len(intervals)) for j in range(len(fractions))]
    possible = [each for each in options if each.saving <= 1] or options
    return min(possible, key=lambda each: (each.overhead, -each.interval, -each.fraction))
