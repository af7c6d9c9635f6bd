"""A geometric decay to an unknown limit through losses, by the profile of its rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.iteration_cost._numbers import Range, f_quantile_of_two, student_quantile
from cpr_native.iteration_cost._steps import LEAST, beaten

Array = NDArray[np.float64]
_GRID = 192


@dataclass(frozen=True)
class LossFit:
    """f(x_k) = `limit` + `amplitude` * exp(-`rate` * k), and the rates that the data accept beside it.

    `rates`, `amplitudes`, `widths`: accepted rates with their amplitudes and the errors of these.
    """

    rate: float
    amplitude: float
    limit: float
    rates: Array
    amplitudes: Array
    widths: Array

    @property
    def c(self) -> Range:
        """The factor an iteration of the distance: the loss falls by its square."""
        low, high = math.exp(-self.rates.max() / 2), math.exp(-self.rates.min() / 2)
        return Range(math.exp(-self.rate / 2), low, high)

    def gap(self, iteration: int) -> Range:
        """f(x_k) - f*."""
        decay = np.exp(-self.rates * iteration)
        low = float(((self.amplitudes - self.widths) * decay).min())
        high = float(((self.amplitudes + self.widths) * decay).max())
        return Range(self.amplitude * math.exp(-self.rate * iteration), max(low, 0.0), high)


class _Profile:
    """y = limit + scale * shape for each of `shapes` [g, n]: scales, squared residuals, squares of shapes."""

    def __init__(self, shapes: Array, y: Array) -> None:
        centred = shapes - shapes.mean(axis=1, keepdims=True)
        left = y - y.mean()
        self.spreads: Array = np.maximum(np.square(centred).sum(axis=1), 1e-300)
        self.scales: Array = centred @ left / self.spreads
        self.squares: Array = np.square(left - self.scales[:, None] * centred).sum(axis=1)
        self.best = int(np.argmin(self.squares))
        self.residuals: Array = left - self.scales[self.best] * centred[self.best]


def fit_losses(means: Array, stride: int, confidence: float) -> LossFit | str:
    """Fit means of `stride` consecutive losses each, or say why the data do not support that.

    Where it does not fit the first half is left out, and half of the rest once more.
    """
    if len(means) < LEAST:
        return f"{len(means)} of {LEAST} observations that are needed at least"
    reasons = []
    for begin in (0, len(means) // 2, 3 * len(means) // 4):
        if len(means) - begin >= LEAST:
            fit = _Decay(begin * stride, means[begin:], stride).fit(confidence)
            if not isinstance(fit, str):
                return fit
            reasons.append(fit)
    return reasons[0]


class _Decay:
    """Fits of `y` [n], means of `stride` losses each, the first from iteration `first` on."""

    def __init__(self, first: int, y: Array, stride: int) -> None:
        self._first = first
        self._stride = stride
        self._at = np.arange(len(y)) * stride
        self._y = y
        self._floor = len(y) * (1e-13 * float(np.abs(y).max())) ** 2
        self._grid: Array = np.geomspace(0.05 / (len(y) * stride), 16.0 / stride, _GRID)

    def _of(self, rates: Array) -> _Profile:
        """Profile the means over each stride of exp(-rate * (k - first))."""
        one = np.expm1(-rates * self._stride) / np.expm1(-rates) / self._stride
        return _Profile(np.exp(-rates[:, None] * self._at) * one[:, None], self._y)

    def fit(self, confidence: float) -> LossFit | str:
        """Return the fit or why there is none."""
        grid = self._grid
        coarse = self._of(grid)
        rates, profile = grid, coarse
        for _ in range(3):
            below, above = max(profile.best - 1, 0), min(profile.best + 1, _GRID - 1)
            rates = np.geomspace(rates[below], rates[above], _GRID)
            profile = self._of(rates)
        reason = self._refusal(profile)
        if reason is not None:
            return reason
        degrees = len(self._y) - 3
        error = (float(profile.squares.min()) + self._floor) / degrees
        t = student_quantile(confidence, degrees)
        most = error * (degrees + t * t)
        inside = np.flatnonzero(coarse.squares <= most)
        if len(inside) and inside[0] == 0:
            return "the losses fall too evenly for their limit to be seen: c may be anything up to 1"
        rate = float(rates[profile.best])
        least, greatest = rate, rate
        if len(inside):
            least, greatest = min(rate, grid[inside[0]]), max(rate, grid[inside[-1]])
        before = max(int(np.searchsorted(grid, least)) - 1, 0)
        after = min(int(np.searchsorted(grid, greatest, side="right")), _GRID - 1)
        least = self._edge(least, float(grid[before]), most)
        greatest = self._edge(greatest, float(grid[after]), most)
        return self._accepted(rate, np.geomspace(least, greatest, _GRID), most, t * math.sqrt(error))

    def _edge(self, inside: float, outside: float, most: float) -> float:
        """Return where, from `inside` to `outside`, the squares left come to `most`, just beyond it."""
        for _ in range(40):
            middle = math.sqrt(inside * outside)
            if self._of(np.array([middle])).squares[0] <= most:
                inside = middle
            else:
                outside = middle
        return outside

    def _accepted(self, rate: float, between: Array, most: float, width: float) -> LossFit:
        """Return the fit with the rates of `between` that the likelihood ratio accepts, and both ends."""
        profile = self._of(between)
        chosen = profile.squares <= most
        chosen[[0, -1]] = True
        best = self._of(np.array([rate]))
        back = np.exp(np.append(between[chosen], rate) * self._first)
        scales = np.append(profile.scales[chosen], best.scales) * back
        fitted = float(self._y[-1] - best.residuals[-1])
        return LossFit(
            rate=rate,
            amplitude=float(scales[-1]),
            limit=fitted - float(best.scales[0]) * self._last_shape(rate),
            rates=np.append(between[chosen], rate),
            amplitudes=scales,
            widths=width / np.sqrt(np.append(profile.spreads[chosen], best.spreads)) * back,
        )

    def _last_shape(self, rate: float) -> float:
        one = math.expm1(-rate * self._stride) / math.expm1(-rate) / self._stride
        return float(math.exp(-rate * self._at[-1]) * one)

    def _refusal(self, profile: _Profile) -> str | None:
        y, n = self._y, len(self._y)
        least = float(profile.squares.min()) + self._floor
        flat = float(np.square(y - y.mean()).sum()) + self._floor
        if profile.scales[profile.best] <= 0:
            return "the losses do not fall: the sequence is flat or diverges"
        if (flat - least) / 2 < f_quantile_of_two(0.99, n - 3) * least / (n - 3):
            return "the losses do not fall by more than their noise"
        k = self._first + self._at + (self._stride - 1) / 2 + 1
        powers = np.geomspace(0.01, 8.0, _GRID)[:, None]
        law = _Profile(np.concatenate([k**-powers, -np.log(k)[None]]), y)
        law_squares = float(law.squares.min()) + self._floor
        if beaten(least, law_squares, n, part=self._first > 0) and law.scales[law.best] > 0:
            return "a power law fits the losses better than a constant factor: the convergence is sublinear"
        squares = float(np.square(profile.residuals).sum())
        if squares <= max(1e-4 * flat, self._floor):
            return None
        # von Neumann's ratio: 2 for independent residuals, less where neighbours are alike
        ratio = float(np.square(np.diff(profile.residuals)).sum()) / squares
        if (2 - ratio) / (2 * math.sqrt((n - 2) / (n * n - 1))) < 2.6:
            return None
        return (
            "the fit leaves structure in the losses: the convergence is not linear (yet), or their noise is "
            "not independent"
        )
