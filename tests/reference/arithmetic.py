"""Sums, pooling and gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

CHUNK = 32
LANES = 32


def ordered_sum(values: FloatArray) -> FloatArray:
    """Sum `values` ([n, ...], float32) over axis 0 in input order, as a 32-ary tree.

    Chunks of 32 values are summed one after the other, then chunks of 32 of those sums, and so on; no values
    give 0.
    """
    values = np.asarray(values, dtype=np.float32)
    if len(values) == 0:
        return np.zeros(values.shape[1:], dtype=np.float32)
    while len(values) > 1:
        sums = []
        for begin in range(0, len(values), CHUNK):
            total = values[begin]
            for value in values[begin + 1 : begin + CHUNK]:
                total = total + value
            sums.append(total)
        values = np.stack(sums)
    return values[0]


def sum_of_squares(row: FloatArray) -> np.float32:
    """Sum the squares of `row` ([dim], float32): 32 lanes (element mod 32), then neighbours pairwise."""
    lanes = np.zeros(LANES, dtype=np.float32)
    for element, value in enumerate(np.asarray(row, dtype=np.float32)):
        lanes[element % LANES] = lanes[element % LANES] + value * value
    while len(lanes) > 1:
        lanes = lanes[0::2] + lanes[1::2]
    return np.float32(lanes[0])


def pool(
    weight: FloatArray,
    ids: IntArray,
    offsets: IntArray,
    *,
    pooling: str = "sum",
    per_sample_weights: FloatArray | None = None,
) -> FloatArray:
    """Pool the bags `ids[offsets[b]:offsets[b + 1]]` of one table: [bags, dim]; an empty bag gives zeros."""
    out = np.zeros((len(offsets) - 1, weight.shape[1]), dtype=np.float32)
    for bag in range(len(offsets) - 1):
        begin, end = int(offsets[bag]), int(offsets[bag + 1])
        if begin == end:
            continue
        values = weight[ids[begin:end]]
        if per_sample_weights is not None:
            values = values * per_sample_weights[begin:end, None]
        out[bag] = ordered_sum(values)
        if pooling == "mean":
            out[bag] = out[bag] / np.float32(end - begin)
    return out


def occurrence_gradients(
    grad: FloatArray,
    offsets: IntArray,
    *,
    pooling: str = "sum",
    per_sample_weights: FloatArray | None = None,
) -> FloatArray:
    """Spread the bags' gradient `grad` ([bags, dim]) over their ids: [ids, dim], in the order of the ids.

    Each id gets `grad[bag]` times its per-sample weight, or times float32(1)/float32(length) for mean.
    """
    out = np.zeros((int(offsets[-1]), grad.shape[1]), dtype=np.float32)
    for bag in range(len(offsets) - 1):
        begin, end = int(offsets[bag]), int(offsets[bag + 1])
        for position in range(begin, end):
            value = grad[bag]
            if per_sample_weights is not None:
                value = value * per_sample_weights[position]
            elif pooling == "mean":
                value = value * (np.float32(1) / np.float32(end - begin))
            out[position] = value
    return out


def row_gradients(ids: IntArray, gradients: FloatArray) -> tuple[IntArray, FloatArray]:
    """Sum the gradients of equal rows in the order of their positions: (rows ascending, sums [u, dim])."""
    rows = np.unique(ids).astype(np.int64)
    sums = [ordered_sum(gradients[ids == row]) for row in rows]
    return rows, np.array(sums, dtype=np.float32).reshape(len(rows), gradients.shape[1])


def per_sample_weight_gradients(
    weight: FloatArray, ids: IntArray, offsets: IntArray, grad: FloatArray
) -> FloatArray:
    """The gradient of the per-sample weights of sum pooling: dot(grad[bag], weight[id]), in float64."""
    out = np.zeros(len(ids), dtype=np.float64)
    for bag in range(len(offsets) - 1):
        for position in range(int(offsets[bag]), int(offsets[bag + 1])):
            out[position] = grad[bag].astype(np.float64) @ weight[ids[position]].astype(np.float64)
    return out.astype(np.float32)
