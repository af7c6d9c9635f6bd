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
    a, b, totals = now.astype(kind), then.astype(kind), np.zeros(len(now))
    with np.errstate(all="ignore"):
        if metric == "tv":
            sums = _totals(a), _totals(b)
            totals = sums[0] + sums[1]
            a, b = (
                rows * np.where(each == 0, kind(0), kind(1) / each.astype(kind))[:, None]
                for rows, each in zip((a, b), sums, strict=True)
            )
        difference = a - b
        sums_of = _totals(difference * difference if metric == "l2" else np.abs(difference))
        found = np.sqrt(sums_of) if metric == "l2" else sums_of * (1.0 if metric == "l1" else 0.5)
        largest = np.finfo(np.float32).max
        return np.where((found < largest) & np.isfinite(totals), found, largest).astype(np.float32)


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
