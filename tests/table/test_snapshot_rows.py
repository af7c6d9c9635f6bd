"""Snapshots of named rows: which are taken, what is refused, beside training, with abort and commit."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from engine import Engine, Taken, drain, trained

from cpr_native._native import Selection

ROWS = (60_000, 3001)


def masks(rng: np.random.Generator, share: float = 0.3) -> list[np.ndarray[Any, Any]]:
    return [rng.random(rows) < share for rows in ROWS]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("clears_dirty", [True, False])
def test_takes_exactly_the_named_rows_clean_ones_too(blocking: bool, clears_dirty: bool) -> None:
    engine = trained()
    rng = np.random.default_rng(1)
    for _ in range(4):
        engine.random_step(rng, 9)
        chosen = [rng.random(rows) < 0.5 for rows in engine.rows]
        before = [engine.rows_of(t) for t in range(2)]
        selections = [Selection.rows(mask) for mask in chosen]
        snapshot = engine.begin(
            *selections, clears_dirty=clears_dirty, blocking=blocking, shard_rows=[130, 7]
        )
        expected = [int(mask.sum()) for mask in chosen]
        assert snapshot.expected_rows == expected
        shards = []
        parts = []
        for chunk in snapshot:
            shards.append((chunk.table, chunk.shard, chunk.rows.copy()))
            parts.append((chunk.table, chunk.rows.copy(), chunk.weight.copy(), chunk.count.copy()))
            chunk.close()
        assert snapshot.rows_taken == expected
        snapshot.commit()
        for table, shard, rows in shards:
            assert (rows // [130, 7][table] == shard).all()
        for table, rows, weight, count in parts:
            assert np.array_equal(weight, before[table][0][rows])
            assert np.array_equal(count, before[table][2][rows] & (2**27 - 1))
        for t, mask in enumerate(chosen):
            taken = np.concatenate([rows for table, rows, _, _ in parts if table == t])
            assert np.array_equal(np.sort(taken), np.flatnonzero(mask))
            counts, dirty = engine.native.counts(t), engine.native.dirty(t)
            words = before[t][2]
            assert np.array_equal(counts, np.where(mask, 0, words & (2**27 - 1)))
            assert np.array_equal(dirty, ((words & 2**30) != 0) & ~(mask & clears_dirty))
            assert engine.native.num_dirty(t) == dirty.sum()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_rows_are_those_at_begin_during_updates(end: str) -> None:
    """The walk and the update pass ask the same mask; a row of either is as it was at begin."""
    engine = Engine(rows=ROWS, dim=32, max_staging_bytes=1 << 20, seed=5)
    rng = np.random.default_rng(7)
    for _ in range(6):
        for _ in range(2):
            engine.random_step(rng, 2000)
        chosen = masks(rng)
        expected = [np.flatnonzero(mask) for mask in chosen]
        before = [engine.rows_of(t) for t in range(2)]
        selections = [Selection.rows(mask) for mask in chosen]
        for mask in chosen:
            mask[:] = False  # the selection has a copy
        snapshot = engine.begin(*selections, clears_dirty=False)
        assert snapshot.expected_rows == [len(rows) for rows in expected]
        del selections  # the snapshot keeps what it asks
        gc.collect()
        result: list[list[Taken]] = []
        reader = threading.Thread(target=lambda s=snapshot, r=result: r.append(drain(s, 2)))  # type: ignore[misc]
        reader.start()
        while reader.is_alive():
            engine.random_step(rng, 500)
        reader.join()
        between = [engine.native.counts(t).astype(np.int64) for t in range(2)]
        getattr(snapshot, end)()
        for t, taken in enumerate(result[0]):
            weight, state, words = before[t]
            assert state is not None
            assert np.array_equal(taken.rows, expected[t])
            assert np.array_equal(taken.weight, weight[taken.rows])
            assert np.array_equal(taken.state, state[taken.rows])
            assert np.array_equal(taken.count, words[taken.rows] & (2**27 - 1))
            given_back = np.zeros(ROWS[t], np.int64)
            given_back[taken.rows] = taken.count if end == "abort" else 0
            assert np.array_equal(engine.native.counts(t), between[t] + given_back)
            assert ((words & 2**30) == 0)[~engine.native.dirty(t)].all()


def test_the_named_rows_are_taken_whatever_the_walk_meets_first() -> None:
    """Side by side: with no training, with training that outruns the walk, and with a blocking walk."""
    rng = np.random.default_rng(3)
    chosen = masks(rng)
    taken = []
    for mode in ("alone", "training", "blocking"):
        engine = Engine(rows=ROWS, dim=32, max_staging_bytes=1 << 22, seed=5)
        steps = np.random.default_rng(7)
        engine.random_step(steps, 3000)
        snapshot = engine.begin(
            *(Selection.rows(mask) for mask in chosen), clears_dirty=False, blocking=mode == "blocking"
        )
        if mode == "training":
            engine.random_step(steps, 3000)
        taken.append(drain(snapshot, 2))
        snapshot.commit()
    for t, mask in enumerate(chosen):
        for result in taken:
            assert np.array_equal(result[t].rows, np.flatnonzero(mask))
            assert np.array_equal(result[t].weight, taken[0][t].weight)
            assert np.array_equal(result[t].count, taken[0][t].count)


def test_no_row_named_takes_nothing_and_leaves_the_trackers() -> None:
    engine = trained()
    before = [engine.native.trackers(t) for t in range(2)]
    nothing = [Selection.rows(np.zeros(rows, bool)) for rows in engine.rows]
    snapshot = engine.begin(*nothing, clears_dirty=True)
    assert snapshot.expected_rows == [0, 0]
    assert [len(taken.rows) for taken in drain(snapshot, 2)] == [0, 0]
    snapshot.commit()
    for t in range(2):
        assert np.array_equal(engine.native.trackers(t), before[t])


def test_masks_of_any_layout_are_read() -> None:
    engine = Engine(rows=(10,))
    backing = np.zeros(20, bool)
    backing[[0, 3, 18]] = True  # 3 lies between the elements of the view
    for mask, expected in ((backing[::2], [0, 9]), (backing[::-2], [8]), (backing[:10], [0, 3])):
        snapshot = engine.begin(Selection.rows(mask), clears_dirty=False)
        assert drain(snapshot, 1)[0].rows.tolist() == expected
        snapshot.commit()


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_a_mask_of_another_dtype_is_refused(dtype: type) -> None:
    with pytest.raises(TypeError, match="mask: expected dtype bool, got "):
        Selection.rows(np.ones(5, dtype))  # type: ignore[arg-type]


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="mask: expected 1 dimension, got 2"):
        Selection.rows(np.ones((5, 1), bool))
    engine = trained()
    before = [engine.native.trackers(t) for t in range(2)]
    for rows in (39, 41, 0):
        with pytest.raises(ValueError, match=rf"mask of table 't1': expected \[40\], got \[{rows}\]"):
            engine.begin(Selection.none(), Selection.rows(np.ones(rows, bool)), clears_dirty=True)
    for t in range(2):
        assert np.array_equal(engine.native.trackers(t), before[t])
    engine.begin(Selection.all(), Selection.rows(np.ones(40, bool)), clears_dirty=True).abort()
