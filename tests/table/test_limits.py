"""Counters at their end, long runs, two kinds of saves, tables above 2^31 elements."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from reference import MAX_COUNT, add_counts

from cpr_native._native import Selection, TableSpec

DIRTY, LISTED = 1 << 30, 1 << 29
MAP_NORESERVE = 0x4000  # of Linux; Python names it only from 3.13 on


def test_v6_counters_pass_two_to_the_24_and_saturate() -> None:
    """They go on where a float32 counter stops and never reach the flag bits above them."""
    starts = np.array([2**24 - 1, 2**24, 2**26, MAX_COUNT - 3, MAX_COUNT - 2, MAX_COUNT - 1, MAX_COUNT, 0])
    engine = Engine(rows=(8,), spec={"drift": True, "ssu_period": 1 << 20})
    engine.call("set_trackers", 0, starts.astype(np.uint32))
    expected = starts.astype(np.uint32)
    ids = np.repeat(np.arange(8), 3)
    offsets = np.arange(len(ids) + 1)
    for _ in range(3):
        assert engine.step(ids, offsets, np.ones((len(ids), 8), np.float32))
        add_counts(expected, ids)
        assert np.array_equal(engine.native.counts(0), expected)
        words = engine.native.trackers(0)
        assert np.array_equal(words & ~np.uint32(LISTED), expected | DIRTY)
        assert engine.native.count_histogram(0).sum() == 8
        assert (engine.native.drift(0) > 0).all()
    assert expected.max() == MAX_COUNT == 2**27 - 1
    assert expected[0] == 2**24 + 8


def test_v6_saturated_counters_are_added_up_after_an_abort() -> None:
    engine = Engine(rows=(4,))
    engine.call("set_trackers", 0, np.array([MAX_COUNT - 1, 2**26, 7, 0], np.uint32))
    snapshot = engine.begin(Selection.most_used(3), clears_dirty=False)
    taken = drain(snapshot, 1)[0]
    assert taken.count.tolist() == [MAX_COUNT - 1, 2**26, 7]
    ids = np.repeat(np.arange(4), 5)
    assert engine.step(ids, np.arange(21), np.ones((20, 8), np.float32))
    assert engine.native.counts(0).tolist() == [5, 5, 5, 5]
    snapshot.abort()
    assert engine.native.counts(0).tolist() == [MAX_COUNT, 2**26 + 5, 12, 5]
    assert engine.native.dirty(0).all()


def test_v6_the_flag_bits_of_words_set_from_outside_are_theirs() -> None:
    """Bits 27, 28 and 31 are the engine's own: words with them are taken without them."""
    engine = Engine(rows=(4,), spec={"drift": True})
    engine.call("set_drift", 0, np.array([1.0, 2.0, 3.0, 4.0], np.float32))
    engine.call("set_trackers", 0, np.array([2**32 - 1, 2**28 | 2**27 | 5, 2**31 | 6, DIRTY | 7], np.uint32))
    assert engine.native.counts(0).tolist() == [MAX_COUNT, 5, 6, 7]
    assert engine.native.dirty(0).tolist() == [True, False, False, True]
    assert engine.native.drift(0).tolist() == [1.0, 2.0, 3.0, 4.0]
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    assert drain(snapshot, 1)[0].count.tolist() == [MAX_COUNT, 5, 6, 7]
    snapshot.commit()
    assert not engine.native.trackers(0).any()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def test_v9_ten_thousand_steps_need_no_more_memory() -> None:
    """Tracking every batch, with and without snapshots, keeps memory as it was."""
    engine = Engine(rows=(5000, 40), dim=4, spec={"drift": True}, max_staging_bytes=1 << 20)
    rng = np.random.default_rng(0)
    ids = [np.concatenate([rng.integers(0, n, 32) for n in engine.rows]) for _ in range(16)]
    offsets = np.arange(65)
    grad = rng.standard_normal((32, 8)).astype(np.float32)
    before: dict[str, int] = {}
    resident = 0
    for step in range(10_000):
        assert engine.step(ids[step % 16], offsets, grad)
        if step % 500 == 499:
            snapshot = engine.begin(Selection.most_drifted(50), Selection.dirty(), clears_dirty=True)
            drain(snapshot, 2)
            snapshot.commit()
        if step == 2000:
            before, resident = engine.native.memory(), resident_bytes()
    assert engine.native.step == 10_000
    assert engine.native.memory() == before
    assert before["staging"] == 0
    assert resident_bytes() - resident < 4 << 20


def test_v10_marks_of_deltas_and_of_priority_saves_are_independent() -> None:
    """What one kind of save clears, the other still sees."""
    engine = Engine(rows=(300,), spec={"drift": True})
    rng = np.random.default_rng(0)

    def save(selection: Selection, *, clears_dirty: bool) -> np.ndarray[Any, Any]:
        snapshot = engine.begin(selection, clears_dirty=clears_dirty)
        taken = drain(snapshot, 1)[0].rows
        snapshot.commit()
        return taken

    for _ in range(5):
        engine.random_step(rng, 100)
        dirty = np.flatnonzero(engine.native.dirty(0))
        hot = save(Selection.most_used(30), clears_dirty=False)
        assert 0 < len(hot) <= len(dirty)
        assert np.array_equal(np.flatnonzero(engine.native.dirty(0)), dirty)
        listed = engine.native.sampled_rows(0)
        assert not np.isin(listed, hot).any()
        engine.random_step(rng, 100)
        dirty = np.union1d(dirty, np.flatnonzero(engine.native.dirty(0)))
        assert np.isin(hot, dirty).all()
        assert np.array_equal(save(Selection.dirty(), clears_dirty=True), dirty)
        assert engine.native.num_dirty(0) == 0
        engine.random_step(rng, 100)
        counts = engine.native.counts(0)
        drifted = save(Selection.most_drifted(1000), clears_dirty=False)
        assert np.array_equal(drifted, np.flatnonzero(counts))
        assert np.array_equal(np.flatnonzero(engine.native.dirty(0)), drifted)


@pytest.fixture
def untouched() -> Any:
    """524,289 rows of 4,096 float32, 8.6 GB that is never touched: the last row begins at element 2^31."""
    rows, dim = 2**19 + 1, 2**12
    memory = mmap.mmap(-1, rows * dim * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    weight = np.frombuffer(memory, np.float32).reshape(rows, dim)
    return weight


def test_v26_a_table_above_two_to_the_31_elements(untouched: np.ndarray[Any, Any]) -> None:
    """Looks up, learns, saves a delta and restores its last row."""
    rows, dim = untouched.shape
    assert (rows - 1) * dim == 2**31
    resident = resident_bytes()
    engine = Engine(
        rows=(rows,), dim=dim, optimizer="none", spec={"external": True}, max_staging_bytes=1 << 20
    )
    engine.native.bind_weight(0, (untouched.ctypes.data, untouched.shape, "float32"), untouched)
    engine.native.clear_trackers(0, 0, rows, dirty=True)
    last = np.arange(1, dim + 1, dtype=np.float32)
    untouched[-1] = last
    ids = np.array([rows - 1, 0, rows - 1])
    out, batch = engine.lookup(ids, np.array([0, 1, 3]))
    assert np.array_equal(out, [last, last])
    found, gradient = engine.call("gradient", batch, np.ones((2, dim), np.float32), table=0, threads=2)
    assert found.tolist() == [0, rows - 1]
    assert (gradient == [[1.0], [2.0]]).all()
    untouched[found] -= gradient
    snapshot = engine.begin(Selection.dirty(), clears_dirty=True, blocking=True)
    taken = drain(snapshot, 1)[0]
    snapshot.commit()
    assert taken.rows.tolist() == [0, rows - 1]
    assert taken.count.tolist() == [1, 2]
    assert np.array_equal(taken.weight, [np.full(dim, -1.0), last - 2.0])
    engine.native.discard_rows(0, rows - 1, rows)
    assert np.isnan(untouched[-1]).all()
    assert untouched[-2].max() == untouched[-2].min() == 0.0
    engine.call("load_rows", 0, taken.rows, taken.weight, None)
    assert np.array_equal(untouched[-1], last - 2.0)
    assert engine.call("renormalise", 0, np.array([rows - 1]), 1.0, 2.0) == 1
    assert np.isclose(np.linalg.norm(untouched[-1]), 1.0, rtol=1e-5)
    assert resident_bytes() - resident < 64 << 20


def spec_of(rows: int, dim: int) -> TableSpec:
    return TableSpec(
        name="t", num_embeddings=rows, embedding_dim=dim, init_min=0.0, init_max=0.0, external=True
    )


def test_rows_are_as_long_as_a_tensor_of_billions_and_tables_end_at_2_to_the_48() -> None:
    for rows, dim in ((1, 2**32 - 1), (2**16, 2**32 - 1), (2**28, 2**20)):
        assert (spec_of(rows, dim).num_embeddings, spec_of(rows, dim).embedding_dim) == (rows, dim)
    with pytest.raises(ValueError, match=r"embedding_dim: expected 1 to 2\^32 - 1, got 4294967296"):
        spec_of(1, 2**32)
    with pytest.raises(ValueError, match=r"expected at most 2\^48 numbers, got 65537 rows of 4294967295"):
        spec_of(2**16 + 1, 2**32 - 1)
