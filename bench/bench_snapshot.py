"""How long a snapshot stops training: `begin` on 1M and 10M rows x dim 32, for the rows of 20 steps."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
import torch
from checkpoints import table_of
from pytest_benchmark.fixture import BenchmarkFixture
from sides import Ours

from cpr_native._native import Selection, Snapshot

STEPS = 20


@pytest.mark.parametrize("rows", [1_000_000, 10_000_000])
def test_snapshot_begin(benchmark: BenchmarkFixture, rows: int) -> None:
    shape = table_of(rows, not benchmark.disabled)
    ours = Ours(shape, "row_wise_adagrad")
    engine = ours.module.engine
    batches = itertools.cycle(shape.batches(5 * STEPS))
    touched: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    beside: list[torch.Tensor] = []

    def train() -> None:
        ids = [next(batches) for _ in range(STEPS)]
        for batch in ids:
            ours.step(batch)
        touched.append(torch.cat([*ids, *beside[-1:]]).unique().numpy())
        weights.append(engine.weight(0)[touched[-1]].copy())

    def begin() -> Snapshot:
        snapshots.append(engine.begin([Selection.dirty()], clears_dirty=True))
        return snapshots[-1]

    def finish() -> None:
        beside.append(next(batches))
        ours.step(beside[-1])  # while the walk runs: what it takes is as it was at begin
        chunks = list(snapshots[-1])
        taken = np.concatenate([chunk.rows for chunk in chunks])
        order = np.argsort(taken)
        assert np.array_equal(taken[order], touched[-1])
        assert np.array_equal(np.concatenate([chunk.weight for chunk in chunks])[order], weights[-1])
        snapshots[-1].commit()

    snapshots: list[Snapshot] = []
    benchmark.group = "snapshot begin"
    benchmark.pedantic(begin, setup=train, teardown=finish, rounds=20 if not benchmark.disabled else 2)
    assert snapshots
    if not benchmark.disabled:
        benchmark.extra_info["stall_ms"] = statistics.median(one.stall_seconds for one in snapshots) * 1e3
        benchmark.extra_info["rows_taken"] = len(touched[-1])
