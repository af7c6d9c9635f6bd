"""Linear contractions x -> x* + A (x - x*) with a known spectrum, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def orthogonal(n: int, rng: np.random.Generator) -> Array:
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def contraction(spectrum: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """A symmetric map with `spectrum`, and its slowest direction (of the largest absolute eigenvalue)."""
    basis = orthogonal(len(spectrum), rng)
    slowest = basis[:, int(np.argmax(np.abs(spectrum)))]
    return basis @ np.diag(spectrum) @ basis.T, slowest


def distances(matrix: Array, start: Array, steps: int, deltas: Mapping[int, Array] | None = None) -> Array:
    """||y[k] - x*|| for k = 0 to steps, of y[k+1] = f(y[k] + delta[k]), with x* = 0."""
    y, seen = start, [float(np.linalg.norm(start))]
    for k in range(steps):
        if deltas is not None and k in deltas:
            y = y + deltas[k]
        y = matrix @ y
        seen.append(float(np.linalg.norm(y)))
    return np.array(seen)


def stays_below(seen: Array, eps: float) -> int:
    """The first iteration from which on the distance is at most `eps`."""
    above = np.flatnonzero(seen > eps)
    assert len(above) == 0 or above[-1] + 1 < len(seen), "the run is too short"
    return 0 if len(above) == 0 else int(above[-1]) + 1


def steps_for(c: float, factor: float) -> int:
    """Iterations in which the slowest direction shrinks by `factor`, and some."""
    return math.ceil(math.log(factor) / -math.log(c)) + 20
