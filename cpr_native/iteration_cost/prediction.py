"""Extra iterations that a recovery would cost, with a range from what is not known exactly."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.iteration_cost._numbers import Range, check_number
from cpr_native.iteration_cost.contraction import Contraction

Lost = float | NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Iterations that a failure now would cost under each way to recover.

    `full`: everything goes back, exactly the iterations since the save; `partial`: the lost blocks go back
    to that save; `priority`: they go back to their newest saved copies (None without). The last two are the
    bound of the paper, with a range over the intervals of c and the distance.
    """

    full: int
    partial: Range
    priority: Range | None


def perturbation_norm(distances: NDArray[np.floating], lost: Lost) -> float:
    """Return the norm of what a partial recovery changes: ||delta'||.

    `distances`: of each block from what it would go back to, [blocks]; `lost`: bool [blocks], or the share p
    of blocks that are lost, drawn uniformly: then sqrt(E||delta'||^2) = sqrt(p) ||delta||. Never more than
    the norm of the full rollback, ||delta||. Raises ValueError. Source: Qiao et al., ICML 2019.
    """
    squares = np.square(np.asarray(distances, dtype=np.float64))
    if squares.ndim != 1 or not np.isfinite(squares).all():
        raise ValueError(f"distances: expected finite numbers, [blocks], got {squares.shape}")
    if isinstance(lost, np.ndarray):
        if lost.dtype != np.bool_ or lost.shape != squares.shape:
            raise ValueError(f"lost: expected bool {squares.shape}, got {lost.dtype} {lost.shape}")
        return math.sqrt(float(squares[lost].sum()))
    if not 0 <= lost <= 1:
        raise ValueError(f"lost: a share must be in [0, 1], got {lost}")
    return math.sqrt(lost * float(squares.sum()))


def perturbation_cost(norm: float, *, c: float | Range, distance: float | Range) -> Range:
    """Return the bound on the iterations that one perturbation costs, log(1 + norm/distance) / log(1/c).

    `norm`: ||delta||; `distance`: ||x - x*|| when it happens, in the same unit: the bound's
    c^(-l) ||delta|| / ||x0 - x*|| of a run that has contracted to it. Given ranges, `low` and `high` are the
    least and the most over them. Raises ValueError. Source: Qiao et al., ICML 2019.
    """
    check_number("perturbation_cost", "norm", norm, positive=False)
    c = c if isinstance(c, Range) else Range(c, c, c)
    distance = distance if isinstance(distance, Range) else Range(distance, distance, distance)
    if not (0 < c.value < 1 and 0 < distance.value < math.inf):
        raise ValueError(
            "perturbation_cost: expected c in (0, 1) and a finite distance above 0, got "
            f"{c.value} and {distance.value}"
        )
    value = _cost(norm, c.value, distance.value)
    corners = itertools.product((c.low, c.high), (distance.low, distance.high))
    costs = [value, *(_cost(norm, *corner) for corner in corners)]
    return Range(value, min(costs), max(costs))


def _cost(norm: float, c: float, distance: float) -> float:
    if norm == 0 or c <= 0:
        return 0.0
    if c >= 1 or distance <= 0:
        return math.inf
    return math.log1p(norm / distance) / -math.log(c)


def predict(
    contraction: Contraction,
    *,
    now: int,
    saved_at: int,
    distances: NDArray[np.floating],
    lost: Lost,
    saved_distances: NDArray[np.floating] | None = None,
    distance: Range | None = None,
) -> Prediction:
    """Predict what a failure at iteration `now` costs when the last complete save is of `saved_at`.

    `contraction`: the estimate, at the latest observation; `distances`: of each block from that complete
    save, [blocks]; `saved_distances`: from its newest copy, priority saves included; `lost`: as
    `perturbation_norm`; `distance`: ||x - x*|| now, None for the estimate's, carried on at the rate c.
    Raises ValueError for an estimate that the data do not support, and for one without a distance.
    """
    contraction.require()
    if not 0 <= saved_at <= now:
        raise ValueError(f"expected 0 <= saved_at <= now, got saved_at {saved_at} and now {now}")
    if distance is None:
        there = contraction.distance_now
        if there is None:
            raise ValueError("the losses give no distance without a curvature: give `distance`")
        shrunk = contraction.c.value ** (now - contraction.iteration)
        distance = Range(there.value * shrunk, there.low * shrunk, there.high * shrunk)
    away = distance

    def cost(of: NDArray[np.floating]) -> Range:
        return perturbation_cost(perturbation_norm(of, lost), c=contraction.c, distance=away)

    return Prediction(
        full=now - saved_at,
        partial=cost(distances),
        priority=None if saved_distances is None else cost(saved_distances),
    )
