"""A line through the logarithms of step lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.iteration_cost._numbers import Range, student_quantile

Array = NDArray[np.float64]
LEAST = 8  # points of a fit
# A change of the rate over the fitted part that is smaller than this share of it is let pass.
_CURVATURE = 0.1
# What is fitted must fall by this factor at least: over less any curve is a straight line.
_FALL = 2.0


@dataclass(frozen=True)
class StepFit:
    """log ||x_{k+1} - x_k|| = `mean` + `slope` * (k - `middle`), with their variances and t."""

    mean: float
    slope: float
    middle: float
    mean_variance: float
    slope_variance: float
    t: float

    @property
    def c(self) -> Range:
        """The factor an iteration."""
        width = self.t * math.sqrt(self.slope_variance)
        low, high = math.exp(self.slope - width), math.exp(self.slope + width)
        return Range(math.exp(self.slope), low, high)

    def distance(self, iteration: int) -> Range:
        """||x_k - x*|| = ||x_{k+1} - x_k|| / (1 - c); its interval to first order in the errors."""
        factor = math.exp(self.slope)
        log = self.mean + self.slope * (iteration - self.middle) - math.log1p(-factor)
        by_slope = iteration - self.middle + factor / (1 - factor)
        width = self.t * math.sqrt(self.mean_variance + by_slope**2 * self.slope_variance)
        return Range(_exp(log), _exp(log - width), _exp(log + width))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def fit_steps(log_means: Array, stride: int, confidence: float) -> StepFit | str:
    """Fit means of `stride` consecutive logarithms each, or say why the data do not support that.

    Where the rate changes the first half is left out, and half of the rest once more.
    """
    if len(log_means) < LEAST:
        return f"{len(log_means)} of {LEAST} observations that are needed at least"
    reasons = []
    at: Array = np.arange(len(log_means), dtype=np.float64) * stride + (stride - 1) / 2
    for begin in (0, len(log_means) // 2, 3 * len(log_means) // 4):
        if len(log_means) - begin >= LEAST:
            fit = _fit(at[begin:], log_means[begin:], confidence, part=begin > 0)
            if not isinstance(fit, str):
                return fit
            reasons.append(fit)
    return reasons[0]


def beaten(squares: float, law_squares: float, points: int, *, part: bool) -> bool:
    """Return whether a power law with `law_squares` left takes the place of a fit with `squares` left.

    `part`: the fit is of the later part alone, where the two differ little: it must then be better by a
    factor of e^3 in likelihood.
    """
    return points / 2 * math.log(law_squares / squares) < (3.0 if part else 0.0)


def _squares(basis: Array, y: Array) -> float:
    """Sum of the squared residuals of y on 1 and `basis`."""
    centred = basis - basis.mean(axis=0)
    left = y - y.mean()
    solution = np.linalg.lstsq(centred, left, rcond=None)[0]
    return float(np.square(left - centred @ solution).sum())


def _fit(at: Array, y: Array, confidence: float, *, part: bool) -> StepFit | str:
    n = len(y)
    x = at - at.mean()
    spread = float(np.square(x).sum())
    slope = float((x * y).sum()) / spread
    floor = n * (1e-13 * max(1.0, float(np.abs(y).max()))) ** 2
    squares = float(np.square(y - y.mean() - slope * x).sum()) + floor
    variance = squares / (n - 2)
    t = student_quantile(confidence, n - 2)
    if slope + t * math.sqrt(variance / spread) >= 0:
        return "the steps do not become shorter: the sequence is flat, diverges, or moves at its noise"
    if -slope * (x[-1] - x[0]) < math.log(_FALL):
        return f"the steps fall by less than a factor of {_FALL:g}: too little to tell their rate"
    curved = _squares(np.stack([x, x * x], axis=1), y) + floor
    gain = max(0.0, squares - curved) / (curved / (n - 3))
    bend = float(np.polyfit(x, y, 2)[0]) * (x[-1] - x[0])
    if gain > student_quantile(0.99, n - 3) ** 2 and abs(bend) > _CURVATURE * abs(slope):
        return "the rate of the steps changes: the convergence is not linear (yet)"
    law = _squares(np.log(at + 1)[:, None], y) + floor
    if beaten(squares, law, n, part=part):
        return "a power law fits the steps better than a constant factor: the convergence is sublinear"
    return StepFit(float(y.mean()), slope, float(at.mean()), variance / n, variance / spread, t)
