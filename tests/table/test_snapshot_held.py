"""Snapshots whose walk is started later than they."""

from __future__ import annotations

import numpy as np
import pytest
from engine import drain, trained

from cpr_native._native import CprError, Selection

TWO = (Selection.all(), Selection.all())


def test_rows_are_those_of_begin_however_late_the_walk_starts() -> None:
    engine = trained()
    before = [engine.rows_of(t) for t in range(2)]
    snapshot = engine.begin(*TWO, clears_dirty=True, walk=False)
    rng = np.random.default_rng(1)
    for _ in range(4):
        engine.random_step(rng, 64)
    assert snapshot.status == "walking"
    assert sum(snapshot.rows_taken) < sum(engine.rows)
    snapshot.walk()
    snapshot.walk()
    taken = drain(snapshot, 2)
    snapshot.commit()
    for t, n in enumerate(engine.rows):
        assert np.array_equal(taken[t].rows, np.arange(n))
        assert np.array_equal(taken[t].weight, before[t][0])
        assert np.array_equal(taken[t].state, before[t][1])
        assert not np.array_equal(engine.native.weight(t), before[t][0])


def test_what_updates_copied_can_be_read_before_the_walk() -> None:
    engine = trained(rows=(5000, 40))
    before = engine.rows_of(0)[0]
    snapshot = engine.begin(*TWO, clears_dirty=True, walk=False)
    rng = np.random.default_rng(1)
    for _ in range(40):
        engine.random_step(rng, 512, skew=1.0)
    read = 0
    while read < 1000:
        chunk = snapshot.next_chunk(0.0)
        assert chunk is not None
        if chunk.table == 0:
            assert np.array_equal(chunk.weight, before[chunk.rows])
            read += len(chunk.rows)
        chunk.close()
    snapshot.abort()


@pytest.mark.parametrize("updates", [0, 3])
def test_abort_before_the_walk_gives_everything_back(updates: int) -> None:
    engine, untouched = trained(), trained()
    snapshot = engine.begin(Selection.dirty(), Selection.dirty(), clears_dirty=True, walk=False)
    for each in (engine, untouched):
        rng = np.random.default_rng(1)
        for _ in range(updates):
            each.random_step(rng, 64)
    snapshot.abort()
    for t in range(2):
        assert np.array_equal(engine.native.dirty(t), untouched.native.dirty(t))
        assert np.array_equal(engine.native.counts(t), untouched.native.counts(t))
    again = engine.begin(*TWO, clears_dirty=True)
    assert [len(taken.rows) for taken in drain(again, 2)] == list(engine.rows)
    again.commit()


@pytest.mark.parametrize("rows", [None, [0]])
def test_rows_written_from_outside_fail_one_that_was_not_walked(rows: list[int] | None) -> None:
    engine = trained()
    snapshot = engine.begin(*TWO, clears_dirty=True, walk=False)
    if rows is None:
        engine.native.mark_dirty(0)
    else:
        engine.call("mark_dirty", 0, np.array(rows))
    assert snapshot.status == "failed"
    with pytest.raises(CprError, match="written from outside"):
        snapshot.next_chunk(5.0)
    snapshot.abort()
    assert engine.native.dirty(0)[0]
    assert engine.native.num_dirty(0) == int(engine.native.dirty(0).sum())


def test_dropped_or_closed_without_a_walk() -> None:
    engine = trained()
    del_me = engine.begin(*TWO, clears_dirty=True, walk=False)
    del del_me
    engine.begin(*TWO, clears_dirty=True, walk=False)
    engine.native.close()


def test_a_blocking_one_is_copied_at_once() -> None:
    engine = trained()
    with pytest.raises(ValueError, match="walk: expected True for a blocking snapshot"):
        engine.begin(*TWO, clears_dirty=True, blocking=True, walk=False)
    snapshot = engine.begin(*TWO, clears_dirty=True, blocking=True)
    snapshot.walk()
    assert sum(len(taken.rows) for taken in drain(snapshot, 2)) == sum(engine.rows)
    snapshot.commit()
