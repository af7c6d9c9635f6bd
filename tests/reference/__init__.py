"""Slow, obvious NumPy references of the engine's arithmetic and trackers: one function per operation.

Everything is float32 and rounds after every operation (no fused multiply-add), so the engine is compared bit
for bit.
"""

from __future__ import annotations

from reference.arithmetic import (
    occurrence_gradients,
    ordered_sum,
    per_sample_weight_gradients,
    pool,
    row_gradients,
    sum_of_squares,
)
from reference.collection import ReferenceCollection
from reference.optimizers import adagrad, adam, partial_row_wise_adam, row_wise_adagrad, sgd
from reference.rounding import as_floats, stochastically_rounded
from reference.trackers import (
    MAX_COUNT,
    SampledList,
    add_counts,
    mark_rows,
    sampled_positions,
    sampled_repeats,
    table_key,
)

__all__ = [
    "MAX_COUNT",
    "ReferenceCollection",
    "SampledList",
    "adagrad",
    "adam",
    "add_counts",
    "as_floats",
    "mark_rows",
    "occurrence_gradients",
    "ordered_sum",
    "partial_row_wise_adam",
    "per_sample_weight_gradients",
    "pool",
    "row_gradients",
    "row_wise_adagrad",
    "sampled_positions",
    "sampled_repeats",
    "sgd",
    "stochastically_rounded",
    "sum_of_squares",
    "table_key",
]
