"""How fast the blocks of a model move, from how far they are from their saved copies."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_BINS = 128
_DECADES = 8.0


class Movement:
    """Distances of blocks from their last saved copies, and how long ago that was.

    `distances`: ||x_i - saved_i||, [blocks], finite, at least 0; `ages`: iterations since block i was saved,
    [blocks], at least 1; `scale`: blocks that each of them stands for (of a sample). Raises ValueError.

    The model behind its answers: every block goes straight to its optimum at the rate c, so a copy of age a
    is (c^(-a) - 1) times as far from the block as the block is from its optimum. That is what contraction
    in the slowest direction does; noise in the steps makes old copies look farther than they are.
    """

    def __init__(
        self, distances: NDArray[np.floating], ages: NDArray[np.integer | np.floating], *, scale: float = 1.0
    ) -> None:
        self.distances: Array = np.asarray(distances, dtype=np.float64)
        self.ages: Array = np.asarray(ages, dtype=np.float64)
        self.scale = float(scale)
        if self.distances.ndim != 1 or self.ages.shape != self.distances.shape or not len(self.ages):
            raise ValueError(
                "expected distances and ages of the same blocks, [blocks], at least one, got "
                f"{self.distances.shape} and {self.ages.shape}"
            )
        if not (np.isfinite(self.distances).all() and (self.distances >= 0).all()):
            raise ValueError("distances must be finite and at least 0")
        if not (np.isfinite(self.ages).all() and (self.ages >= 1).all()):
            raise ValueError("ages must be finite and at least 1")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be finite and above 0, got {scale}")

    @property
    def norm(self) -> float:
        """The perturbation if every block were lost now."""
        return math.sqrt(self.scale * float(np.square(self.distances).sum()))

    def _to_go(self, c: float) -> Array:
        """Return the distance of each block from its optimum, [blocks]."""
        with np.errstate(over="ignore"):
            to_go: Array = self.distances / np.expm1(self.ages * -math.log(c))
        return to_go

    def distance(self, c: float) -> float:
        """Return ||x - x*|| as the blocks' movement since their saves says."""
        return math.sqrt(self.scale * float(np.square(self._to_go(c)).sum()))

    def perturbations(
        self, c: float, intervals: NDArray[np.floating], fractions: NDArray[np.floating]
    ) -> Array:
        """Return sqrt(E||delta||^2) of a failure at any time, all blocks lost, [intervals, fractions].

        For saves of the fraction of blocks that are farthest from their copies, every so many iterations,
        once that has gone on for long: block i is saved when (c^(-age) - 1) times its distance from the
        optimum comes to a threshold, but not more often than saves come, and the threshold is where saves
        take their fraction. The distances are as of now: both sides of a bound shrink at the rate c.
        """
        to_go = self._to_go(c)
        moving = to_go[to_go > 0]
        if not len(moving):
            return np.zeros((len(intervals), len(fractions)))
        sizes, counts = _binned(moving)
        rate = -math.log(c)
        quotas = np.asarray(fractions, dtype=np.float64) * len(to_go)
        periods = _periods(sizes, counts, rate, np.asarray(intervals, dtype=np.float64), quotas)
        squares = _mean_square_growth(rate, periods) @ (counts * np.square(sizes))
        out: Array = np.sqrt(self.scale * squares)
        return out


def _binned(values: Array) -> tuple[Array, Array]:
    """Return root mean squares and numbers of `values` (above 0) in log-spaced bins that are not empty."""
    top = float(values.max())
    logs = np.log10(np.maximum(values / top, 10.0**-_DECADES))
    bins = np.minimum((-logs * (_BINS / _DECADES)).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS).astype(np.float64)
    squares = np.bincount(bins, np.square(values / top), minlength=_BINS)
    full = counts > 0
    return top * np.sqrt(squares[full] / counts[full]), counts[full]


def _periods(sizes: Array, counts: Array, rate: float, intervals: Array, quotas: Array) -> Array:
    """Return the iterations between saves of the blocks of each size, [intervals, quotas, sizes].

    At most as many blocks as its quota are in a save.
    """
    logs = np.log(sizes)
    shortest = intervals[:, None, None]

    def at(log_thresholds: Array) -> Array:
        ages = np.logaddexp(0.0, log_thresholds[:, :, None] - logs) / rate
        periods: Array = np.maximum(ages, shortest)
        return periods

    low = np.full((len(intervals), len(quotas)), logs.min() - 60.0)
    # at this threshold a save takes no more than the smallest quota of blocks of any size
    longest = intervals.max() * counts.sum() / quotas.min()
    high = np.full_like(low, logs.max() + rate * longest + 1.0)
    for _ in range(48):
        middle = (low + high) / 2
        over = (counts * shortest / at(middle)).sum(axis=2) > quotas
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return at(high)


def _mean_square_growth(rate: float, periods: Array) -> Array:
    """Return the mean of (e^(rate * a) - 1)^2 over ages a from 0 to each period."""
    x = np.minimum(rate * periods, 300.0)
    exact = (np.expm1(2 * x) / 2 - 2 * np.expm1(x) + x) / x
    series = x * x / 3 + x**3 / 4  # below, the terms cancel
    mean: Array = np.where(x < 1e-3, series, exact)
    return mean
