"""A whole collection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import FloatArray, IntArray, occurrence_gradients, pool, row_gradients
from reference.optimizers import (
    adagrad,
    adam,
    decayed,
    initial_states,
    partial_row_wise_adam,
    row_wise_adagrad,
    sgd,
)
from reference.rounding import rounding_key, stochastically_rounded
from reference.trackers import add_counts, mark_rows, table_key


class ReferenceCollection:
    """The tables, optimizer state, counts and dirty rows of a collection, updated by the functions above.

    `weights` are copied, as float32; `features[f]` is the table of feature f; ids are feature-major with
    `features * batch + 1` offsets, as the engine's. `states` have the engine's shapes, None without state.
    `dtypes`: what rows are rounded to after each step, for which `seed` and `names` are the engine's.
    """

    def __init__(
        self,
        weights: Sequence[FloatArray],
        features: Sequence[int],
        *,
        optimizer: str,
        lr: float,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        initial_state: float = 0.0,
        poolings: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        seed: int = 0,
        names: Sequence[str] = (),
    ) -> None:
        self.weights = [np.array(weight, dtype=np.float32) for weight in weights]
        self.states = [initial_states(optimizer, weight, initial_state) for weight in self.weights]
        self.counts = [np.zeros(len(weight), dtype=np.uint32) for weight in weights]
        self.dirty = [np.zeros(len(weight), dtype=np.bool_) for weight in weights]
        self.features = list(features)
        self.poolings = list(poolings) if poolings is not None else ["sum"] * len(self.weights)
        self.dtypes = list(dtypes) if dtypes is not None else ["float32"] * len(self.weights)
        self.keys = [table_key(seed, name) for name in names]
        self.optimizer, self.lr, self.eps = optimizer, lr, eps
        self.betas, self.weight_decay, self.steps = betas, weight_decay, 0

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
        multiplicity: NDArray[np.uint32] | None = None,
    ) -> None:
        """One step: the optimizer once per row with the summed gradient, then counts and dirty rows.

        `multiplicity` ([ids]): the accesses that each id stands for; None: one.
        """
        for table in range(len(self.weights)):
            if table in frozen:
                continue
            all_ids, rows, sums = self.gradients(table, ids, offsets, grad, per_sample_weights, grad_scale)
            self._optimise(table, rows, sums)
            if self.dtypes[table] != "float32":
                key = rounding_key(self.keys[table], self.steps)
                weight = self.weights[table]
                weight[rows] = stochastically_rounded(weight[rows], rows, self.dtypes[table], key)
            add_counts(self.counts[table], all_ids, self._of_table(table, offsets, multiplicity))
            mark_rows(self.dirty[table], all_ids)
        self.steps += 1

    def _of_table(
        self, table: int, offsets: IntArray, values: NDArray[np.uint32] | None
    ) -> NDArray[np.uint32] | None:
        if values is None:
            return None
        spans = [self._feature(offsets, f)[0] for f, owner in enumerate(self.features) if owner == table]
        return np.concatenate([values[:0], *(values[span] for span in spans)])

    def _optimise(self, table: int, rows: IntArray, sums: FloatArray) -> None:
        weight, state = self.weights[table], self.states[table]
        sums = decayed(weight, rows, sums, weight_decay=self.weight_decay)
        lr, eps, betas, t = self.lr, self.eps, self.betas, self.steps + 1
        if self.optimizer == "sgd":
            sgd(weight, rows, sums, lr=lr)
        elif self.optimizer == "row_wise_adagrad":
            row_wise_adagrad(weight, state, rows, sums, lr=lr, eps=eps)
        elif self.optimizer == "adagrad":
            adagrad(weight, state, rows, sums, lr=lr, eps=eps)
        elif self.optimizer == "adam":
            adam(weight, state, rows, sums, lr=lr, eps=eps, betas=betas, t=t)
        elif self.optimizer == "partial_row_wise_adam":
            partial_row_wise_adam(weight, state, rows, sums, lr=lr, eps=eps, betas=betas, t=t)
