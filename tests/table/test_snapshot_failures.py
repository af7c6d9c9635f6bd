"""Snapshots that fail, are given up, or are short of memory."""

from __future__ import annotations

import contextlib
import gc
import threading

import numpy as np
import pytest
from device_saves import Reader
from engine import Engine, drain, trained

from cpr_native._native import CprError, Selection, Snapshot, StagingFull
from cpr_native._tensor import describe


def test_a_dropped_snapshot_is_aborted() -> None:
    engine = trained()
    before = engine.native.trackers(0)
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    del snapshot
    gc.collect()
    assert np.array_equal(engine.native.trackers(0), before)
    with engine.begin(Selection.all(), Selection.all(), clears_dirty=True):
        pass
    assert np.array_equal(engine.native.trackers(0), before)


def test_rows_written_from_outside_fail_a_running_walk() -> None:
    engine = Engine(rows=(200_000,), dim=32, max_staging_bytes=1 << 20)
    engine.random_step(np.random.default_rng(0), 64)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)  # waits for a reader after 1 MB
    engine.native.mark_dirty(0, describe(np.array([3])))
    with pytest.raises(CprError, match="written from outside"):
        drain(snapshot, 1)
    with pytest.raises(CprError, match="written from outside"):
        snapshot.commit()
    snapshot.abort()
    assert engine.native.dirty(0)[3]


def test_rows_written_from_outside_before_the_next_step_fail_a_finished_walk() -> None:
    """The write is only noticed after the walk: it may have run beside it."""
    engine = trained()
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    drain(snapshot, 2)
    engine.native.mark_dirty(0, describe(np.array([3])))
    assert snapshot.status == "failed"
    with pytest.raises(CprError, match="written from outside"):
        snapshot.commit()
    snapshot.abort()
    assert snapshot.status == "aborted"


def test_rows_written_from_outside_after_the_walk_leave_the_snapshot_alone() -> None:
    engine = trained()
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    drain(snapshot, 2)
    engine.random_step(np.random.default_rng(0), 64)
    engine.native.mark_dirty(0)
    snapshot.commit()
    assert engine.native.num_dirty(0) == engine.rows[0]


def test_a_failed_snapshot_says_so_to_a_waiting_reader() -> None:
    engine = Engine(rows=(200_000,), dim=32, max_staging_bytes=1 << 20)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    assert snapshot.status == "walking"
    engine.native.mark_dirty(0, describe(np.array([3])))
    assert snapshot.status == "failed"
    with pytest.raises(CprError, match="written from outside"):
        snapshot.next_chunk(timeout=0.0)
    snapshot.abort()
    again = engine.begin(Selection.all(), clears_dirty=True)
    assert len(drain(again, 1)[0].rows) == 200_000
    again.commit()


def test_an_update_that_no_reader_makes_room_for_fails_and_may_be_tried_again() -> None:
    engine = Engine(rows=(60_000,), dim=32, max_staging_bytes=1 << 20)
    assert engine.native.max_stall_seconds == 60.0
    engine.native.max_stall_seconds = 0.05
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    before = engine.rows_of(0)
    ids = np.arange(0, 60_000, 3)
    grad = np.ones((len(ids), 32), np.float32)
    with pytest.raises(
        StagingFull, match=r"of at most 2097152 bytes\) and no reader took a chunk for 0\.05 s"
    ):
        engine.step(ids, np.arange(len(ids) + 1), grad)
    weight, state, _ = engine.rows_of(0)
    assert np.array_equal(weight, before[0])
    assert np.array_equal(state, before[1])
    assert engine.native.step == 0
    engine.native.max_stall_seconds = 60.0
    reader = Reader(snapshot, 1)
    assert engine.step(ids, np.arange(len(ids) + 1), grad)
    (taken,) = reader.result()
    assert np.array_equal(taken.weight, before[0])
    assert np.array_equal(taken.state, before[1])
    snapshot.commit()
    assert engine.native.num_dirty(0) == len(ids)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 2e9])
def test_seconds_out_of_range_are_refused(seconds: float) -> None:
    engine = trained()
    with pytest.raises(ValueError, match="max_stall_seconds: expected 0 to 1e9, got"):
        engine.native.max_stall_seconds = seconds
    assert engine.native.max_stall_seconds == 60.0


def test_abort_beside_a_reader_loses_no_dirty_row() -> None:
    engine = Engine(rows=(30_000,), dim=16, max_staging_bytes=1 << 18)
    for _ in range(40):
        engine.native.mark_dirty(0)
        snapshot = engine.begin(Selection.dirty(), clears_dirty=True)
        reader = threading.Thread(target=read_until_aborted, args=(snapshot,))
        reader.start()
        engine.native.close()
        reader.join()
        assert engine.native.num_dirty(0) == 30_000
        assert engine.native.dirty(0).all()


def read_until_aborted(snapshot: Snapshot) -> None:
    with contextlib.suppress(CprError):
        for chunk in snapshot:
            chunk.close()


def test_a_batch_of_another_collection_is_refused() -> None:
    first, second = trained(), trained()
    _, batch = first.lookup(np.array([1, 2]), np.arange(3))
    with pytest.raises(ValueError, match="another's"):
        second.native.update(batch, describe(np.ones((1, 16), np.float32)), threads=1)


def test_next_chunk_times_out_while_the_walk_waits() -> None:
    engine = Engine(rows=(100_000,), dim=32, max_staging_bytes=1 << 20)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    assert snapshot.next_chunk(timeout=30.0) is not None
    with pytest.raises(TimeoutError, match="no chunk within"):
        poll(snapshot)
    snapshot.abort()


def poll(snapshot: Snapshot) -> None:
    """Ask for chunks faster than the walk fills them."""
    while snapshot.next_chunk(timeout=0.0) is not None:
        pass


def test_staging_memory_is_bounded_by_the_pool_and_not_by_the_table() -> None:
    bound = 1 << 20
    engine = Engine(rows=(100_000,), dim=32, max_staging_bytes=bound)  # 14 MB of rows
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    rng = np.random.default_rng(0)
    most = 0
    read = 0
    while (chunk := snapshot.next_chunk()) is not None:
        engine.random_step(rng, 64)
        most = max(most, engine.native.memory()["staging"])
        read += len(chunk.rows)
        chunk.close()
    snapshot.commit()
    assert read == 100_000
    assert most <= 3 * bound
    assert engine.native.memory()["staging"] == 0
