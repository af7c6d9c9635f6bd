"""Shares, means and quantiles of the histograms of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpr_native.emulate.results import FailureRecord, RunResult

Weight = Literal["rows", "lookups"]


class Distribution:
    """Values with weights; without any weight every share, mean and quantile is NaN.

    `values`: float64 [n], ascending and distinct; `weights`: float64 [n], whole numbers.
    """

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        sums: dict[float, float] = {}
        for value, weight in pairs:
            sums[value] = sums.get(value, 0) + weight
        self.values: NDArray[np.float64] = np.array(sorted(sums), np.float64)
        self.weights: NDArray[np.float64] = np.array([sums[value] for value in sorted(sums)], np.float64)
        self._total = float(self.weights.sum()) or math.nan

    @property
    def highest(self) -> float:
        """The highest value, 0 where there is none."""
        return float(self.values[-1]) if len(self.values) else 0.0

    @property
    def cumulative(self) -> NDArray[Any]:
        """Share of the weight at or below each value, [n], the last 1."""
        return np.cumsum(self.weights) / self._total

    @property
    def mean(self) -> float:
        """The weighted mean."""
        return float(self.values @ self.weights) / self._total

    def at_least(self, value: float) -> float:
        """Share of the weight at or above `value`."""
        return float(self.weights[self.values >= value].sum()) / self._total

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of the weight, in (0, 1], is at or below."""
        if math.isnan(self._total):
            return math.nan
        # Weights are whole numbers: rounding of `share` is the only error, far below half a one.
        at = np.searchsorted(np.cumsum(self.weights), share * self._total - 1e-9 * self._total)
        return float(self.values[at])


def saved_of(run: RunResult, weight: Weight) -> Distribution:
    """How often the rows of all tables were saved in `run`."""
    return Distribution(
        pair for part in run.rows_saved for pair in zip(part.times, getattr(part, weight), strict=True)
    )


def age_of(failure: FailureRecord, weight: Weight) -> Distribution:
    """Hours of age of the rows that went back at a failure."""
    return Distribution(_ages(failure, weight))


def pooled_age_of(run: RunResult, weight: Weight) -> Distribution:
    """Hours of age of the rows that went back at all failures of `run`, which has at least one."""
    return Distribution(pair for failure in run.failures for pair in _ages(failure, weight))


def _ages(failure: FailureRecord, weight: Weight) -> Iterable[tuple[float, float]]:
    return zip(failure.row_age.hours, getattr(failure.row_age, weight), strict=True)
