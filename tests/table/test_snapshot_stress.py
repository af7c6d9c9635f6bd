"""Snapshots beside training: every row taken is the row as it was at begin, every other row is left alone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from engine import Engine, Taken, drain

from cpr_native._native import Selection, Snapshot

ROWS = (60_000, 3_000)
DIM = 32
COUNT_MASK = 2**27 - 1
Rows = tuple[np.ndarray, np.ndarray | None, np.ndarray]
DIRTY = 2**30
LISTED = 2**29


def read_in_background(snapshot: Snapshot) -> tuple[threading.Thread, list[list[Taken]]]:
    result: list[list[Taken]] = []
    reader = threading.Thread(target=lambda: result.append(drain(snapshot, len(ROWS))))
    reader.start()
    return reader, result


def selection_of(kind: str, rows: int) -> Selection:
    return Selection.most_used(rows // 8) if kind == "most_used" else getattr(Selection, kind)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("kind", ["all", "dirty", "sampled", "most_used"])
def test_v15_rows_are_of_one_step_during_updates(kind: str, end: str) -> None:
    """Weight, state and count of every row taken are those at begin, while the update pass goes on."""
    engine = Engine(rows=ROWS, dim=DIM, max_staging_bytes=1 << 21, seed=5)
    rng = np.random.default_rng(7)
    taken_rows = 0
    for _ in range(12):
        for _ in range(3):
            engine.random_step(rng, 2000)
        at_begin = [engine.rows_of(t) for t in range(2)]
        clears_dirty = kind in ("all", "dirty")
        snapshot = engine.begin(*(selection_of(kind, n) for n in ROWS), clears_dirty=clears_dirty)
        reader, result = read_in_background(snapshot)
        while reader.is_alive():
            engine.random_step(rng, 500)
        reader.join()
        trackers = [engine.native.trackers(t) for t in range(2)]
        if end == "commit":
            snapshot.commit()
        else:
            snapshot.abort()
        for t, taken in enumerate(result[0]):
            check_taken(kind, at_begin[t], taken)
            check_trackers(clears_dirty, end, at_begin[t][2], taken, trackers[t], engine.native.trackers(t))
            assert engine.native.num_dirty(t) == engine.native.dirty(t).sum()
            counts = engine.native.counts(t)
            assert engine.native.count_histogram(t)[:8].tolist() == [
                int((counts == c).sum()) for c in range(8)
            ]
            taken_rows += len(taken.rows)
        if end == "abort":
            final = engine.begin(Selection.all(), Selection.all(), clears_dirty=True)
            drain(final, 2)
            final.commit()
    assert taken_rows > 1000


def check_taken(kind: str, at_begin: tuple[np.ndarray, np.ndarray | None, np.ndarray], taken: Taken) -> None:
    weight, state, words = at_begin
    assert state is not None
    assert len(np.unique(taken.rows)) == len(taken.rows)
    expected = {
        "all": np.arange(len(words)),
        "dirty": np.flatnonzero(words & DIRTY),
        "sampled": np.flatnonzero(words & LISTED),
    }
    if kind in expected:
        assert np.array_equal(taken.rows, expected[kind])
    assert np.array_equal(taken.weight, weight[taken.rows])
    assert np.array_equal(taken.state, state[taken.rows])
    assert np.array_equal(taken.count, words[taken.rows] & COUNT_MASK)


def check_trackers(
    clears_dirty: bool,
    end: str,
    words: np.ndarray,
    taken: Taken,
    before_end: np.ndarray,
    after_end: np.ndarray,
) -> None:
    """Counts seen after begin are kept; a commit drops what was taken, an abort adds it back."""
    was_taken = np.zeros(len(words), dtype=bool)
    was_taken[taken.rows] = True
    grown = (before_end & COUNT_MASK).astype(np.int64) - np.where(was_taken, 0, words & COUNT_MASK)
    assert (grown >= 0).all()
    if end == "commit":
        assert np.array_equal(after_end, before_end)
    else:
        expected = grown + (words & COUNT_MASK)
        assert np.array_equal(after_end & COUNT_MASK, expected)
        assert np.array_equal(after_end & DIRTY, (words | before_end) & DIRTY)
    if not clears_dirty:
        assert np.array_equal(before_end & DIRTY, (words & DIRTY) | (before_end & DIRTY))


def count_wrong(snapshot: Snapshot, at_begin: Rows, wrong: list[int]) -> None:
    """Compare every chunk in place with the rows at begin."""
    weight, state, words = at_begin
    assert state is not None
    for chunk in snapshot:
        rows = chunk.rows
        same = (chunk.weight == weight[rows]).all(axis=1) & (chunk.state == state[rows])
        same &= chunk.count == words[rows] & COUNT_MASK
        wrong.append(len(rows) - int(same.sum()))
        chunk.close()


def test_millions_of_rows_taken_during_updates_are_all_exact() -> None:
    rows = 100_000
    engine = Engine(rows=(rows,), dim=DIM, max_staging_bytes=1 << 22)
    rng = np.random.default_rng(11)
    ids = (rows * rng.random((8, 3000)) ** 1.5).astype(np.int64)
    offsets = np.arange(3001)
    grad = rng.standard_normal((3000, DIM)).astype(np.float32)
    steps = 0
    for _ in range(20):
        wrong: list[int] = []
        at_begin = engine.rows_of(0)
        snapshot = engine.begin(Selection.all(), clears_dirty=True)
        reader = threading.Thread(target=count_wrong, args=(snapshot, at_begin, wrong))
        reader.start()
        while reader.is_alive():
            assert engine.step(ids[steps % 8], offsets, grad)
            steps += 1
        reader.join()
        snapshot.commit()
        assert sum(wrong) == 0
        assert snapshot.rows_taken == [rows]
    assert steps > 20


def test_the_list_of_sampled_rows_does_not_depend_on_the_walk() -> None:
    """The same steps with and without snapshots in flight end with the same rows, counts and list."""
    results = []
    for interval in (3, 4):
        engine = Engine(rows=ROWS, dim=4, max_staging_bytes=1 << 20)
        rng = np.random.default_rng(2)
        snapshot = None
        for step in range(24):
            if step % 12 == 0:
                # Taken at the same steps in both runs; read at once or some steps later.
                snapshot = engine.begin(*(Selection.sampled() for _ in ROWS), clears_dirty=False)
            if snapshot is not None and step % 12 == interval - 3:
                drain(snapshot, 2)
                snapshot.commit()
                snapshot = None
            engine.random_step(rng, 4000)
        results.append([engine.rows_of(t) for t in range(2)])
    for first, second in zip(*results, strict=True):
        for a, b in zip(first, second, strict=True):
            assert np.array_equal(a, b)
