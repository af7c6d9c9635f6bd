"""The drift tracker: sums of step norms, their buckets, and which rows a snapshot takes by them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import FloatArray, IntArray, sum_of_squares
from reference.optimizers import _bias_corrections
from reference.trackers import hash2

MAX_DRIFT = np.float32(np.finfo(np.float32).max)
BUCKETS = 256


def step_norms(
    optimizer: str,
    gradients: FloatArray,
    state: FloatArray | None,
    *,
    lr: float,
    eps: float,
    betas: tuple[float, float],
    t: int,
) -> FloatArray:
    """The L2 norms [u] of the steps of rows with `gradients` [u, dim] and the `state` of them after the step.

    SGD and row-wise Adagrad multiply the norm of the gradient by the row's rate; the others take the norm of
    the step itself.
    """
    rate, tiny = np.float32(lr), np.float32(eps)
    dim = gradients.shape[1]
    if optimizer == "sgd":
        return np.array([rate * np.sqrt(sum_of_squares(g)) for g in gradients], dtype=np.float32)
    assert state is not None
    if optimizer == "row_wise_adagrad":
        rates = rate / (np.sqrt(state) + tiny)
        return rates * np.array([np.sqrt(sum_of_squares(g)) for g in gradients], dtype=np.float32)
    if optimizer == "adagrad":
        steps = rate * gradients / (np.sqrt(state) + tiny)
    else:
        correction1, correction2 = _bias_corrections(betas, t)
        v = state[:, dim:]  # one column for partial_row_wise_adam
        steps = rate * (state[:, :dim] / correction1) / (np.sqrt(v / correction2) + tiny)
    return np.array([np.sqrt(sum_of_squares(step)) for step in steps], dtype=np.float32)


def add_drift(drift: FloatArray, norms: FloatArray) -> FloatArray:
    """drift + norms; NaN and infinity become the largest float."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = drift + norms
        return np.where(sums < MAX_DRIFT, sums, MAX_DRIFT).astype(np.float32)


def drift_buckets(drift: FloatArray) -> IntArray:
    """Buckets of drifts [n]: 4 for every doubling from 2^-40 to 2^24, smaller in 0 and larger in the last."""
    bits = np.ascontiguousarray(drift, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.clip((bits >> 21) - ((127 - 40) << 2), 0, BUCKETS - 1)


def drift_histogram(drift: FloatArray) -> IntArray:
    """Rows by bucket of their drift: [256]."""
    return np.bincount(drift_buckets(drift), minlength=BUCKETS)


def most_drifted(drift: FloatArray, quota: int, *, key: int, sequence: int) -> NDArray[Any]:
    """The rows that the snapshot number `sequence` of a collection takes for a quota; `key`: the table's.

    Buckets are taken from the highest down; of the one that does not fit whole, the rows whose hash is below
    the fraction that fits. Bucket 0 is never taken.
    """
    buckets = drift_buckets(drift)
    above = 0
    for bucket in range(BUCKETS - 1, 0, -1):
        inside = int((buckets == bucket).sum())
        if above + inside > quota:
            boundary = int(np.floor((quota - above) / inside * 2**32))
            hash_key = hash2((key + 1) % 2**64, sequence)
            within = [int(row) for row in np.flatnonzero(buckets == bucket)]
            chosen = [row for row in within if hash2(hash_key, row) >> 32 < boundary]
            return np.sort(np.concatenate([np.flatnonzero(buckets > bucket), np.array(chosen, np.int64)]))
        above += inside
    return np.flatnonzero(buckets > 0)
