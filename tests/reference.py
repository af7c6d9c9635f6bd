"""Slow, obvious NumPy references of the engine's arithmetic and trackers: one function per operation.

Everything is float32 and rounds after every operation (no fused multiply-add), so the engine is compared bit
for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

CHUNK = 32
LANES = 32
MAX_COUNT = 2**29 - 1


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


def sgd(weight: FloatArray, rows: IntArray, gradients: FloatArray, *, lr: float) -> None:
    """Update `weight` ([n, dim]) in place: w = w - lr * g for each of `rows`."""
    for row, gradient in zip(rows, gradients, strict=True):
        weight[row] = weight[row] - np.float32(lr) * gradient


def row_wise_adagrad(
    weight: FloatArray,
    accumulator: FloatArray,
    rows: IntArray,
    gradients: FloatArray,
    *,
    lr: float,
    eps: float = 1e-8,
) -> None:
    """Update `weight` and `accumulator` ([n]): a += sum(g^2) / dim; w = w - lr / (sqrt(a) + eps) * g."""
    dim = np.float32(weight.shape[1])
    for row, gradient in zip(rows, gradients, strict=True):
        accumulator[row] = accumulator[row] + sum_of_squares(gradient) / dim
        multiplier = np.float32(lr) / (np.sqrt(accumulator[row]) + np.float32(eps))
        weight[row] = weight[row] - multiplier * gradient


def add_counts(counts: NDArray[np.uint32], ids: IntArray) -> None:
    """Add the multiplicity of each row in `ids` to `counts` ([n]) in place, saturating at 2^29 - 1."""
    multiplicity = np.bincount(ids, minlength=len(counts)).astype(np.int64)
    counts[:] = np.minimum(counts.astype(np.int64) + multiplicity, MAX_COUNT).astype(np.uint32)


def mark_rows(dirty: NDArray[np.bool_], ids: IntArray) -> None:
    """Set the bit of each row of `ids` in `dirty` ([n]) in place."""
    dirty[ids] = True


def mix64(x: int) -> int:
    """SplitMix64's finaliser of a 64-bit value."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def hash2(a: int, b: int) -> int:
    """The engine's hash of two 64-bit values."""
    step = 0x9E3779B97F4A7C15
    return mix64((mix64((a + step) % 2**64) + b * step) % 2**64)


def table_key(seed: int, name: str) -> int:
    """FNV-1a of a table's name, mixed with the seed."""
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = ((digest ^ byte) * 0x100000001B3) % 2**64
    return hash2(seed, digest)


def sampled_positions(seed: int, step: int, count: int, period: int) -> NDArray[np.bool_]:
    """Which of the positions [0, count) of a batch's ids are sampled in `step`: one in `period`, by hash."""
    sampled = np.ones(count, dtype=np.bool_)
    for position in range(count):
        for draw in range(period.bit_length() - 1):
            bits = hash2(hash2((hash2(seed, 0x53) + draw) % 2**64, step), position // 64)
            sampled[position] &= bits >> (position % 64) & 1
    return sampled


class SampledList:
    """The sub-sampled used list of one table: `fraction * rows` slots, at least 1, of one row each."""

    def __init__(self, rows: int, fraction: float, seed: int, name: str) -> None:
        slots = max(1, int(fraction * rows))
        self._groups = 64 if slots >= 4096 else 1
        self._slots_per_group = slots // self._groups
        self._key = hash2(table_key(seed, name), 0x55)
        self._holder: dict[int, int] = {}

    def _slot(self, row: int) -> int:
        digest = (row * (self._key | 1) + (self._key << 32)) % 2**64
        group = digest >> 58 if self._groups > 1 else 0
        return group * self._slots_per_group + ((digest >> 26) % 2**32 * self._slots_per_group >> 32)

    def update(self, rows: IntArray) -> None:
        """Enter the sampled rows of one step: each evicts the holder; of several the largest row stays."""
        for row in np.unique(rows).tolist():
            self._holder[self._slot(row)] = row

    def rows(self) -> list[int]:
        """The listed rows, ascending."""
        return sorted(self._holder.values())


class ReferenceCollection:
    """The tables, optimizer state, counts and dirty rows of a collection, updated by the functions above.

    `weights` are copied; `features[f]` is the table of feature f; ids are feature-major with
    `features * batch + 1` offsets, as the engine's.
    """

    def __init__(
        self,
        weights: Sequence[FloatArray],
        features: Sequence[int],
        *,
        optimizer: str,
        lr: float,
        eps: float = 1e-8,
        initial_state: float = 0.0,
        poolings: Sequence[str] | None = None,
    ) -> None:
        self.weights = [np.array(weight, dtype=np.float32) for weight in weights]
        self.states = [np.full(len(weight), initial_state, dtype=np.float32) for weight in weights]
        self.counts = [np.zeros(len(weight), dtype=np.uint32) for weight in weights]
        self.dirty = [np.zeros(len(weight), dtype=np.bool_) for weight in weights]
        self.features = list(features)
        self.poolings = list(poolings) if poolings is not None else ["sum"] * len(self.weights)
        self.optimizer, self.lr, self.eps = optimizer, lr, eps

    def _feature(self, offsets: IntArray, feature: int) -> tuple[slice, IntArray]:
        batch = (len(offsets) - 1) // len(self.features)
        bags = offsets[feature * batch : (feature + 1) * batch + 1]
        return slice(int(bags[0]), int(bags[-1])), bags - bags[0]

    def lookup(
        self, ids: IntArray, offsets: IntArray, per_sample_weights: FloatArray | None = None
    ) -> FloatArray:
        """Pool every feature: [batch, sum of the features' dims]."""
        outputs = []
        for feature, table in enumerate(self.features):
            span, bags = self._feature(offsets, feature)
            scale = None if per_sample_weights is None else per_sample_weights[span]
            pooling = self.poolings[table]
            outputs.append(
                pool(self.weights[table], ids[span], bags, pooling=pooling, per_sample_weights=scale)
            )
        return np.concatenate(outputs, axis=1)

    def gradients(
        self,
        table: int,
        ids: IntArray,
        offsets: IntArray,
        grad: FloatArray,
        per_sample_weights: FloatArray | None = None,
        grad_scale: float = 1.0,
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """All ids of `table` in the batch, its unique rows, and their summed gradients times `grad_scale`."""
        dims = [self.weights[owner].shape[1] for owner in self.features]
        begins = np.cumsum([0, *dims])
        dim = self.weights[table].shape[1]
        occurrences = [np.zeros((0, dim), dtype=np.float32)]
        looked_up = [np.zeros(0, dtype=np.int64)]
        for feature, owner in enumerate(self.features):
            if owner != table:
                continue
            span, bags = self._feature(offsets, feature)
            looked_up.append(np.asarray(ids[span], dtype=np.int64))
            occurrences.append(
                occurrence_gradients(
                    grad[:, begins[feature] : begins[feature + 1]],
                    bags,
                    pooling=self.poolings[table],
                    per_sample_weights=None if per_sample_weights is None else per_sample_weights[span],
                )
            )
        all_ids = np.concatenate(looked_up)
        rows, sums = row_gradients(all_ids, np.concatenate(occurrences))
        return all_ids, rows, sums * np.float32(grad_scale)

    def update(
        self,
        ids: IntArray,
        offsets: IntArray,
        grad: FloatArray,
        per_sample_weights: FloatArray | None = None,
        *,
        grad_scale: float = 1.0,
        frozen: Sequence[int] = (),
    ) -> None:
        """One step: the optimizer once per row with the summed gradient, then counts and dirty rows."""
        for table in range(len(self.weights)):
            if table in frozen:
                continue
            all_ids, rows, sums = self.gradients(table, ids, offsets, grad, per_sample_weights, grad_scale)
            if self.optimizer == "sgd":
                sgd(self.weights[table], rows, sums, lr=self.lr)
            elif self.optimizer == "row_wise_adagrad":
                row_wise_adagrad(
                    self.weights[table], self.states[table], rows, sums, lr=self.lr, eps=self.eps
                )
            add_counts(self.counts[table], all_ids)
            mark_rows(self.dirty[table], all_ids)
