"""What a run says about its own convergence: c and the distance to the optimum, or why it says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cpr_native.iteration_cost._losses import fit_losses
from cpr_native.iteration_cost._numbers import Range, check_number, check_open_unit
from cpr_native.iteration_cost._series import Series
from cpr_native.iteration_cost._steps import fit_steps

Source = Literal["losses", "steps"]
_NOTHING = Range(math.nan, math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """An estimate of c and ||x0 - x*|| with intervals, or a refusal.

    `c`: of the slowest direction; `distance`: ||x0 - x*||, at the first observation, along that direction,
    and `distance_now` the same at the last one, `iteration` (None from losses without a curvature);
    `gap`: f(x0) - f* and `limit`: f* (None from steps); `observations`: numbers seen; `confidence`: of each
    interval by itself; `reason`: why the data do not support an estimate, "" where they do. A refusal has
    NaN for numbers.
    """

    source: Source
    confidence: float
    observations: int
    c: Range = _NOTHING
    distance: Range | None = None
    distance_now: Range | None = None
    iteration: int = 0
    gap: Range | None = None
    limit: float | None = None
    reason: str = ""

    @property
    def supported(self) -> bool:
        """Whether the data support the estimate."""
        return not self.reason

    def require(self) -> Contraction:
        """Return it; raises ValueError with the reason when the data do not support it."""
        if self.reason:
            raise ValueError(f"not supported by the data: {self.reason}")
        return self


class ContractionEstimator:
    """Estimates the contraction of a run while it runs; any number of observations in constant memory.

    From losses: f(x_k) - f* = a * c^(2k), which holds for a quadratic, and near the optimum of a smooth
    strongly convex f, along the slowest direction; f* is estimated too. Noise is taken as independent and
    equally large in each observation. From steps: ||x_{k+1} - x_k|| = (1 - c) c^k ||x_0 - x*||, along that
    direction, which needs no optimum; their noise is taken as independent and multiplicative. One
    observation an iteration, in order. What was seen first, while faster directions still count, is left
    out where the rate changes. A sequence that is flat, diverges, converges sublinearly or ends too early
    for its limit to be known is refused with the reason.

    `window`: means kept of each sequence, an even number of at least 16; `confidence`: of the intervals;
    `curvature`: f's in the slowest direction (f - f* = curvature / 2 * ||x - x*||^2), which alone makes a
    distance of a loss. Raises ValueError.
    Source: Qiao et al., ICML 2019 (arXiv 1810.07354), who say that both can be estimated online, not how.
    """

    def __init__(
        self, *, window: int = 128, confidence: float = 0.95, curvature: float | None = None
    ) -> None:
        check_open_unit("ContractionEstimator", "confidence", confidence)
        if curvature is not None:
            check_number("ContractionEstimator", "curvature", curvature, positive=True)
        self._confidence = confidence
        self._curvature = curvature
        self._losses = Series(window)
        self._log_steps = Series(window)
        self._stopped = False

    def observe(self, loss: float) -> None:
        """Add f(x_k), of the next k; ValueError for a number that is not finite."""
        if not math.isfinite(loss):
            raise ValueError(f"ContractionEstimator: a loss must be finite, got {loss}")
        self._losses.extend([float(loss)])

    def observe_step(self, norm: float) -> None:
        """Add ||x_{k+1} - x_k||, of the next k; 0 says that it has stopped. ValueError below 0."""
        check_number("ContractionEstimator", "a step's norm", norm, positive=False)
        if norm == 0:
            self._stopped = True
        else:
            self._log_steps.extend([math.log(norm)])

    def from_losses(self) -> Contraction:
        """Return the estimate from the losses seen so far."""
        seen = len(self._losses)
        fit = fit_losses(self._losses.means, self._losses.stride, self._confidence)
        if isinstance(fit, str):
            return Contraction(source="losses", confidence=self._confidence, observations=seen, reason=fit)
        now = seen - 1
        return Contraction(
            source="losses",
            confidence=self._confidence,
            observations=seen,
            c=fit.c,
            distance=self._distance(fit.gap(0)),
            distance_now=self._distance(fit.gap(now)),
            iteration=now,
            gap=fit.gap(0),
            limit=fit.limit,
        )

    def _distance(self, gap: Range) -> Range | None:
        if self._curvature is None:
            return None
        value, low, high = (math.sqrt(2 * part / self._curvature) for part in (gap.value, gap.low, gap.high))
        return Range(value, low, high)

    def from_steps(self) -> Contraction:
        """Return the estimate from the steps seen so far."""
        seen = len(self._log_steps)
        fit: Any = "a step had length 0: the iterates have stopped"
        if not self._stopped:
            fit = fit_steps(self._log_steps.means, self._log_steps.stride, self._confidence)
        if isinstance(fit, str):
            return Contraction(source="steps", confidence=self._confidence, observations=seen, reason=fit)
        return Contraction(
            source="steps",
            confidence=self._confidence,
            observations=seen,
            c=fit.c,
            distance=fit.distance(0),
            distance_now=fit.distance(seen - 1),
            iteration=seen - 1,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen, as JSON values."""
        return {
            "losses": self._losses.state_dict(),
            "log_steps": self._log_steps.state_dict(),
            "stopped": self._stopped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError, KeyError for anything else."""
        self._losses.load_state_dict(state["losses"])
        self._log_steps.load_state_dict(state["log_steps"])
        self._stopped = bool(state["stopped"])


def contraction_of_losses(
    losses: Iterable[float], *, confidence: float = 0.95, curvature: float | None = None
) -> Contraction:
    """Return what `ContractionEstimator` says after these losses f(x_0), f(x_1), ..."""
    estimator = ContractionEstimator(confidence=confidence, curvature=curvature)
    for loss in losses:
        estimator.observe(loss)
    return estimator.from_losses()


def contraction_of_steps(norms: Sequence[float], *, confidence: float = 0.95) -> Contraction:
    """Return what `ContractionEstimator` says after these ||x_{k+1} - x_k||."""
    estimator = ContractionEstimator(confidence=confidence)
    for norm in norms:
        estimator.observe_step(norm)
    return estimator.from_steps()
