"""When a run has reached a value of its objective, between iterations, and what a failure made of that."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 5
STAY = 10


def smoothed(values: Floats) -> Floats:
    """Return the median of each value and up to four before it, of [iterations]."""
    return np.array([np.median(values[max(0, k - WINDOW + 1) : k + 1]) for k in range(len(values))])


def crossing(values: Floats, target: float, first: int, *, stochastic: bool) -> float | None:
    """Return the iteration at which `values` come down to `target`, log-linear between two of them.

    `values`: of a run's iterations from 0, above 0; those before `first` are above `target`. A stochastic
    run's are smoothed, and have to stay at or below the target for 10 iterations. None if that isn't seen.
    """
    seen = smoothed(values) if stochastic else values
    below = seen <= target
    k = first
    while True:
        while k < len(seen) and not below[k]:
            k += 1
        if k == len(seen):
            return None
        if not stochastic:
            break
        stays = below[k : k + STAY]
        if stays.all():
            if len(stays) < STAY:
                return None
            break
        k += int(np.argmin(stays))
    if k == first or seen[k - 1] <= target:
        return float(k)
    return k - 1 + math.log(seen[k - 1] / target) / math.log(seen[k - 1] / seen[k])
