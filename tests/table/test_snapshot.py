"""Snapshots at rest: what is taken, what is cleared, what comes back after an abort."""

from __future__ import annotations

import numpy as np
import pytest
from engine import Engine, drain, trained

from cpr_native._native import Selection, SnapshotInProgress
from cpr_native._tensor import describe


def test_all_takes_every_row_as_it_is() -> None:
    engine = trained()
    before = [engine.rows_of(t) for t in range(2)]
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    taken = drain(snapshot, 2)
    snapshot.commit()
    for t, n in enumerate(engine.rows):
        weight, state, _ = before[t]
        assert np.array_equal(taken[t].rows, np.arange(n))
        assert np.array_equal(taken[t].weight, weight)
        assert np.array_equal(taken[t].state, state)
        assert np.array_equal(taken[t].count, before[t][2] & 0x1FFFFFFF)
        assert not engine.native.trackers(t).any()
        assert engine.native.num_dirty(t) == 0
        assert engine.native.count_histogram(t)[0] == n


def test_dirty_takes_the_updated_rows_and_nothing_else() -> None:
    engine = trained()
    dirty = np.flatnonzero(engine.native.dirty(0))
    snapshot = engine.begin(Selection.dirty(), Selection.none(), clears_dirty=True)
    taken = drain(snapshot, 2)
    snapshot.commit()
    assert 0 < len(dirty) < engine.rows[0]
    assert np.array_equal(taken[0].rows, dirty)
    assert len(taken[1].rows) == 0
    assert engine.native.num_dirty(0) == 0
    assert engine.native.num_dirty(1) > 0


def test_priority_clears_counts_but_leaves_rows_dirty() -> None:
    engine = trained()
    dirty = engine.native.dirty(0)
    counts = engine.native.counts(0)
    snapshot = engine.begin(Selection.most_used(20), Selection.none(), clears_dirty=False)
    taken = drain(snapshot, 2)
    snapshot.commit()
    assert np.array_equal(engine.native.dirty(0), dirty)
    counts[taken[0].rows] = 0
    assert np.array_equal(engine.native.counts(0), counts)
    assert not np.isin(engine.native.sampled_rows(0), taken[0].rows).any()


def test_sampled_takes_the_list_and_empties_it() -> None:
    engine = trained()
    listed = [engine.native.sampled_rows(t) for t in range(2)]
    assert all(len(rows) for rows in listed)
    snapshot = engine.begin(Selection.sampled(), Selection.sampled(), clears_dirty=False)
    taken = drain(snapshot, 2)
    snapshot.commit()
    for t in range(2):
        assert np.array_equal(taken[t].rows, listed[t])
        assert len(engine.native.sampled_rows(t)) == 0


@pytest.mark.parametrize("budget", [1, 5, 37, 100, 100_000])
def test_most_used_takes_the_highest_counts(budget: int) -> None:
    engine = trained(rows=(2000,), steps=40)
    counts = engine.native.counts(0)
    snapshot = engine.begin(Selection.most_used(budget), clears_dirty=False)
    taken = drain(snapshot, 1)[0]
    snapshot.commit()
    used = int((counts > 0).sum())
    assert snapshot.expected_rows == [min(budget, used)]
    # Buckets are 1/8 octave wide: above the boundary bucket everything is taken, below it nothing.
    left = np.setdiff1d(np.arange(2000), taken.rows)
    assert counts[taken.rows].min() >= 1
    assert counts[left].max() <= counts[taken.rows].min() * 1.125 + 1e-9
    assert abs(len(taken.rows) - min(budget, used)) <= 4 * np.sqrt(min(budget, used)) + 1


def test_ties_fill_the_budget_by_hash_and_not_by_row() -> None:
    engine = Engine(rows=(4000,))
    ids = np.arange(4000)
    grad = np.ones((4000, 8), np.float32)
    taken = []
    for _ in range(2):
        assert engine.step(ids, np.arange(4001), grad)
        snapshot = engine.begin(Selection.most_used(1000), clears_dirty=False)
        taken.append(drain(snapshot, 1)[0].rows)
        snapshot.commit()
        engine.native.clear_trackers(0, 0, 4000, dirty=False)
    for rows in taken:
        assert 850 < len(rows) < 1150
        assert 400 < (rows < 2000).sum() < 600
    assert not np.array_equal(taken[0], taken[1])  # another sequence, other rows


def test_counts_above_the_last_bucket_are_taken() -> None:
    engine = Engine(rows=(64,))
    words = np.arange(64, dtype=np.uint32)
    words[7] = 2**27 - 1
    words[9] = 2**27 - 2
    engine.native.set_trackers(0, describe(words))
    snapshot = engine.begin(Selection.most_used(2), clears_dirty=False)
    assert drain(snapshot, 1)[0].rows.tolist() == [7, 9]
    snapshot.commit()


@pytest.mark.parametrize("kind", ["all", "dirty", "sampled", "most_used"])
@pytest.mark.parametrize("read", ["nothing", "one chunk", "everything"])
def test_abort_gives_everything_back(kind: str, read: str) -> None:
    engine = trained(rows=(3000, 40), max_staging_bytes=1 << 17)
    before = [engine.native.trackers(t) for t in range(2)]
    histogram = engine.native.count_histogram(0)
    selection = Selection.most_used(30) if kind == "most_used" else getattr(Selection, kind)()
    snapshot = engine.begin(selection, selection, clears_dirty=kind in ("all", "dirty"))
    if read == "one chunk":
        assert snapshot.next_chunk() is not None
    elif read == "everything":
        drain(snapshot, 2)
    snapshot.abort()
    assert snapshot.status == "aborted"
    for t in range(2):
        assert np.array_equal(engine.native.trackers(t), before[t])
    assert np.array_equal(engine.native.count_histogram(0), histogram)
    again = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    assert len(drain(again, 2)[0].rows) == 3000
    again.commit()


def test_abort_adds_to_what_was_counted_meanwhile() -> None:
    engine = Engine(rows=(10,))
    ids = np.array([4, 4, 5])
    grad = np.ones((3, 8), np.float32)
    assert engine.step(ids, np.arange(4), grad)
    snapshot = engine.begin(Selection.dirty(), clears_dirty=True)
    drain(snapshot, 1)
    assert engine.step(np.array([4, 6, 6]), np.arange(4), grad)
    assert engine.native.counts(0).tolist() == [0, 0, 0, 0, 1, 0, 2, 0, 0, 0]
    snapshot.abort()
    assert engine.native.counts(0).tolist() == [0, 0, 0, 0, 3, 1, 2, 0, 0, 0]
    assert np.flatnonzero(engine.native.dirty(0)).tolist() == [4, 5, 6]
    assert engine.native.num_dirty(0) == 3


def test_one_uncommitted_snapshot_at_a_time() -> None:
    engine = trained()
    snapshot = engine.begin(Selection.dirty(), Selection.dirty(), clears_dirty=True)
    with pytest.raises(SnapshotInProgress, match="begin"):
        engine.begin(Selection.dirty(), Selection.dirty(), clears_dirty=True)
    rows = np.array([1])
    values = np.zeros((1, 8), np.float32)
    with pytest.raises(SnapshotInProgress, match="load_rows"):
        engine.native.load_rows(0, describe(rows), describe(values), describe(np.zeros(1, np.float32)))
    with pytest.raises(SnapshotInProgress, match="reset_rows"):
        engine.native.reset_rows(0, 0, 10)
    drain(snapshot, 2)
    snapshot.commit()
    engine.native.reset_rows(0, 0, 10)


def test_commit_wants_every_chunk_read() -> None:
    engine = trained()
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
    with pytest.raises(ValueError, match="every chunk"):
        snapshot.commit()
    drain(snapshot, 2)
    snapshot.commit()
    with pytest.raises(ValueError, match="committed before"):
        snapshot.commit()
    snapshot.abort()  # after a commit it has nothing to give back
    assert engine.native.num_dirty(0) == 0


def test_views_are_read_only_and_outlive_the_chunk() -> None:
    engine = trained()
    weight = engine.native.weight(0).copy()
    snapshot = engine.begin(Selection.all(), Selection.none(), clears_dirty=True)
    chunk = snapshot.next_chunk()
    assert chunk is not None
    rows, copy = chunk.rows, chunk.weight
    with pytest.raises(ValueError, match="read-only"):
        copy[0, 0] = 1.0
    chunk.close()
    with pytest.raises(ValueError, match="after close"):
        _ = chunk.weight
    drain(snapshot, 2)
    snapshot.commit()
    del snapshot
    for _ in range(3):  # recycles staging memory
        other = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
        drain(other, 2)
        other.commit()
        engine.random_step(np.random.default_rng(1), 64)
    assert np.array_equal(copy, weight[rows])


def test_chunks_are_cut_at_shards() -> None:
    engine = trained(rows=(500, 40))
    snapshot = engine.begin(Selection.dirty(), Selection.all(), clears_dirty=True, shard_rows=[125, 10])
    seen: dict[tuple[int, int], list[int]] = {}
    for chunk in snapshot:
        seen.setdefault((chunk.table, chunk.shard), []).extend(chunk.rows.tolist())
    snapshot.commit()
    for (table, shard), rows in seen.items():
        size = (125, 10)[table]
        assert all(row // size == shard for row in rows)
    assert sorted(row for (table, _), rows in seen.items() if table == 1 for row in rows) == list(range(40))


def test_a_saved_row_that_is_sampled_again_is_listed_again() -> None:
    engine = Engine(rows=(10,), spec={"ssu_period": 1, "ssu_fraction": 1.0})
    grad = np.ones((1, 8), np.float32)
    for _ in range(3):
        assert engine.step(np.array([4]), np.arange(2), grad)
        assert engine.native.sampled_rows(0).tolist() == [4]
        snapshot = engine.begin(Selection.dirty(), clears_dirty=True)
        drain(snapshot, 1)
        snapshot.commit()
        assert engine.native.sampled_rows(0).tolist() == []


def test_blocking_snapshot_is_complete_when_begin_returns() -> None:
    engine = trained()
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True, blocking=True)
    assert snapshot.status == "complete"
    assert [len(taken.rows) for taken in drain(snapshot, 2)] == list(engine.rows)
    snapshot.commit()


def test_next_chunk_times_out_only_while_there_is_more() -> None:
    engine = trained()
    snapshot = engine.begin(Selection.none(), Selection.none(), clears_dirty=False)
    assert snapshot.next_chunk(timeout=10.0) is None
    snapshot.commit()
    with pytest.raises(ValueError, match="timeout"):
        snapshot.next_chunk(timeout=-1.0)


def test_chunks_end_where_balanced_rows_do() -> None:
    """10 rows over shards 2 to 5, and 3 that all lie in shard 1."""
    engine = Engine(rows=(10, 3), dim=2)
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True, shard_rows=[(2, 4), (1, 1)])
    found: dict[tuple[int, int], list[int]] = {}
    while (chunk := snapshot.next_chunk()) is not None:
        found.setdefault((chunk.table, chunk.shard), []).extend(chunk.rows.tolist())
        chunk.close()
    snapshot.commit()
    assert found == {
        (0, 2): [0, 1, 2], (0, 3): [3, 4], (0, 4): [5, 6, 7], (0, 5): [8, 9], (1, 1): [0, 1, 2]
    }  # fmt: skip
    for wrong in ((-1, 2), (0, 0), (0, 11)):
        with pytest.raises(ValueError, match=r"shard_rows: expected a first shard of at least 0 and 1 to 10"):
            engine.begin(Selection.all(), Selection.all(), clears_dirty=True, shard_rows=[wrong, (0, 1)])
