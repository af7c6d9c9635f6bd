"""The distance of rows from a copy of them."""

from __future__ import annotations

import numpy as np

from reference.arithmetic import FloatArray, sum_of_squares


def distances(now: FloatArray, then: FloatArray) -> FloatArray:
    """The L2 distances [n] of rows `now` from `then`, [n, dim] float64 or what widens to float32.

    An infinite or NaN distance becomes the largest float32.
    """
    largest = np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        if now.dtype == np.float64:
            squares = (now - then) ** 2
            sums = np.array([np.add.accumulate(row)[-1] for row in squares])
            found = np.sqrt(sums)
        else:
            steps = now.astype(np.float32) - then.astype(np.float32)
            found = np.array([np.sqrt(sum_of_squares(step)) for step in steps], np.float32)
        return np.where(found < largest, found, largest).astype(np.float32)
