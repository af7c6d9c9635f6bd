"""The distance of rows from a copy of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import LANES, FloatArray

SEGMENT = 1 << 14


def distances(now: NDArray[Any], then: NDArray[Any], metric: str = "l2") -> FloatArray:
    """The distances [n] of rows `now` from `then`, [n, dim] float64 or what widens to float32.

    An infinite or NaN distance becomes the largest float32.
    """
    kind = np.float64 if now.dtype == np.float64 else np.float32
    a, b = now.astype(kind), then.astype(kind)
    with np.errstate(all="ignore"):
        if metric == "tv":
            a, b = (rows * _shares(_totals(rows).astype(kind))[:, None] for rows in (a, b))
        difference = a - b
        sums = _totals(difference * difference if metric == "l2" else np.abs(difference))
        found = np.sqrt(sums) if metric == "l2" else sums * (1.0 if metric == "l1" else 0.5)
        largest = np.finfo(np.float32).max
        return np.where(found < largest, found, largest).astype(np.float32)


def _shares(totals: NDArray[Any]) -> NDArray[Any]:
    """1 over each of `totals`, 0 for 0 and NaN for what isn't finite, in their dtype."""
    return np.where(totals == 0, totals.dtype.type(0), 1 / totals + (totals - totals))


def _totals(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The sums of segments of `SEGMENT` items of each row, one after the other in float64."""
    totals = np.zeros(len(rows))
    for begin in range(0, rows.shape[1], SEGMENT):
        totals += _sum_lanes(rows[:, begin : begin + SEGMENT])
    return totals


def _sum_lanes(rows: NDArray[Any]) -> NDArray[Any]:
    """32 lanes (element mod 32), each in order, then neighbours pairwise; in the items' dtype."""
    lanes = np.zeros((len(rows), LANES), rows.dtype)
    for begin in range(0, rows.shape[1], LANES):
        chunk = rows[:, begin : begin + LANES]
        lanes[:, : chunk.shape[1]] += chunk
    while lanes.shape[1] > 1:
        lanes = lanes[:, 0::2] + lanes[:, 1::2]
    return lanes[:, 0]
