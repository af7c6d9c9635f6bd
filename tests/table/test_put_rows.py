"""Rows copied out and put back: weight and state as they were, trackers as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpr_native._native import Collection, Selection, SnapshotInProgress, TableSpec
from cpr_native._tensor import describe

STATES = {"sgd": None, "row_wise_adagrad": (), "adagrad": (4,), "adam": (8,), "partial_row_wise_adam": (5,)}


def collection(optimizer: str, dtype: str = "float32") -> Collection:
    spec = TableSpec(
        name="t", num_embeddings=30, embedding_dim=4, pooling="none", row_offset=100, init_min=-1, init_max=1,
        dtype=dtype, drift=True,
    )  # fmt: skip
    return Collection([spec], [0], optimizer=optimizer, learning_rate=0.1)


def update(engine: Collection, ids: list[int]) -> None:
    rows, out = np.array(ids, np.int32), np.empty((len(ids), 4), np.float32)
    offsets = np.array([0, len(ids)], np.int64)
    batch = engine.lookup(describe(rows), describe(offsets), None, describe(out), threads=1, keep=True)
    assert batch is not None
    engine.update(batch, describe(np.full((len(ids), 4), 0.5, np.float32)), threads=1)


def room(engine: Collection, optimizer: str, n: int) -> tuple[Any, Any]:
    weight = np.empty((n, 4), engine.weight(0).dtype)
    columns = STATES[optimizer]
    return weight, None if columns is None else np.empty((n, *columns), np.float32)


@pytest.mark.parametrize("optimizer", STATES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_come_back_to_the_bit(optimizer: str, dtype: str) -> None:
    engine = collection(optimizer, dtype)
    update(engine, [3, 7, 29])
    rows = np.array([129, 103, 105], np.int64)
    weight, state = room(engine, optimizer, 3)
    ref = None if state is None else describe(state)
    engine.copy_rows(0, describe(rows), describe(weight), ref, threads=2)
    before = engine.weight(0).copy(), engine.state(0)
    assert np.array_equal(weight, before[0][rows - 100])
    update(engine, [3, 5, 8, 29])
    after, counts, drift = engine.weight(0).copy(), engine.counts(0), engine.drift(0)
    engine.put_rows(0, describe(rows), describe(weight), ref)
    expected = after
    expected[rows - 100] = before[0][rows - 100]
    assert np.array_equal(engine.weight(0), expected)
    now = engine.state(0)
    if now is not None and before[1] is not None:
        assert np.array_equal(now[rows - 100], before[1][rows - 100])
        assert not np.array_equal(now[8], before[1][8])
    assert np.array_equal(engine.counts(0), counts)
    assert np.array_equal(engine.drift(0), drift)
    assert np.flatnonzero(engine.dirty(0)).tolist() == [3, 5, 7, 8, 29]


def test_rows_that_were_clean_become_dirty() -> None:
    engine = collection("row_wise_adagrad")
    rows = np.array([104], np.int64)
    weight, state = room(engine, "row_wise_adagrad", 1)
    engine.copy_rows(0, describe(rows), describe(weight), describe(state))
    engine.put_rows(0, describe(rows), describe(weight), describe(state))
    assert (engine.num_dirty(0), engine.dirty(0)[4]) == (1, True)


def test_refusals_change_nothing() -> None:
    engine = collection("row_wise_adagrad")
    rows = np.array([130], np.int64)
    weight, state = room(engine, "row_wise_adagrad", 1)
    weight[:], state[:] = 9, 9
    for call in (engine.copy_rows, engine.put_rows):
        with pytest.raises(IndexError):
            call(0, describe(rows), describe(weight), describe(state))
        with pytest.raises(ValueError, match="state: expected 1 values a row"):
            call(0, describe(rows), describe(weight), None)
        with pytest.raises(ValueError, match="weight"):
            call(0, describe(rows), describe(weight[:, :3].copy()), describe(state))
    assert (weight == 9).all()
    rows[0] = 100
    snapshot = engine.begin([Selection.all()], clears_dirty=True)
    with pytest.raises(SnapshotInProgress):
        engine.put_rows(0, describe(rows), describe(weight), describe(state))
    snapshot.abort()
    assert not (engine.weight(0) == 9).any()
