"""The copy of rows as last saved: what it follows, what an abort forgets, and distances from it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from reference.distance import distances

from cpr_native._native import Selection, SnapshotInProgress
from cpr_native.errors import CprError

LARGEST = np.finfo(np.float32).max
DTYPES = ("float32", "float16", "bfloat16", "float64")


def widened(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else values


def engine_of(dtype: str, rows: int, dim: int) -> Engine:
    return Engine(rows=(7, rows), dim=dim, optimizer="none", spec={"dtype": dtype}, seed=dim)


@pytest.mark.parametrize("dim", [1, 3, 16, 33, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_changes_are_the_references_distances(dtype: str, dim: int) -> None:
    rows = 9000 if dim < 16 else 300
    engine = engine_of(dtype, rows, dim)
    engine.native.keep_saved(1, True)
    assert not engine.native.changes(1).any()
    now = engine.native.weight(1)
    then = now.copy()
    now[::3] = engine_of(dtype, rows, dim + 1).native.weight(1)[::3, :dim]
    expected = distances(widened(now, dtype), widened(then, dtype))
    for threads in (1, 2, 3):
        assert np.array_equal(engine.native.changes(1, threads=threads), expected)
    assert not expected[1::3].any()
    assert np.count_nonzero(expected) > rows / 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_the_largest_float(dtype: str) -> None:
    engine = engine_of(dtype, 6, 5)
    engine.native.keep_saved(1, True)
    infinity, nan = (0x7F80, 0x7FC0) if dtype == "bfloat16" else (np.inf, np.nan)
    now = engine.native.weight(1)
    now[1, 0], now[2, 4] = infinity, nan
    assert engine.native.changes(1).tolist() == [0, LARGEST, LARGEST, 0, 0, 0]
    engine.native.refresh_saved(1, 0, 6)  # infinity minus infinity is NaN
    assert engine.native.changes(1).tolist() == [0, LARGEST, LARGEST, 0, 0, 0]


def test_memory_is_that_of_the_rows_and_is_given_back() -> None:
    engine = Engine(rows=(100, 7), dim=8)
    engine.native.keep_saved(0, True)
    engine.native.keep_saved(0, True)
    assert engine.native.memory()["saved"] == 100 * 8 * 4
    engine.native.keep_saved(0, False)
    assert engine.native.memory()["saved"] == 0
    with pytest.raises(ValueError, match="changes: table 't0' keeps no copy of its rows"):
        engine.native.changes(0)
    engine.native.refresh_saved(0, 0, 100)  # of no copy: nothing to do


def test_refused_without_a_change_while_a_snapshot_is_in_flight() -> None:
    engine = Engine(rows=(100, 7))
    engine.native.keep_saved(0, True)
    snapshot = engine.begin(Selection.all(), Selection.none(), clears_dirty=True)
    for call, arguments in (
        ("changes", (0,)), ("keep_saved", (0, False)), ("keep_saved", (1, True)),
        ("refresh_saved", (0, 0, 9)),
    ):  # fmt: skip
        with pytest.raises(SnapshotInProgress):
            getattr(engine.native, call)(*arguments)
    snapshot.abort()
    assert engine.native.memory()["saved"] == 100 * 8 * 4
    with pytest.raises(IndexError, match="table: expected 0 <= table < 2, got 2"):
        engine.native.keep_saved(2, True)
    with pytest.raises(IndexError):
        engine.native.refresh_saved(0, 0, 101)


def take(engine: Engine, kind: str, rng: np.random.Generator) -> Any:
    named = [rng.random(rows) < 0.2 for rows in engine.rows]
    given = [(40,) if kind.startswith("most") else (mask,) if kind == "rows" else () for mask in named]
    selections = [getattr(Selection, kind)(*arguments) for arguments in given]
    return engine.begin(*selections, clears_dirty=kind in ("all", "dirty"), shard_rows=[1700, 30])


@pytest.mark.parametrize("seed", range(3))
def test_the_copy_follows_every_kind_of_commit_beside_training(seed: int) -> None:
    """A slow copy, kept by reading what each snapshot gives, ranks the same."""
    engine = Engine(rows=(20_000, 300), dim=4, spec={"drift": True}, seed=seed, max_staging_bytes=1 << 20)
    rng = np.random.default_rng(seed)
    saved = []
    for table in range(2):
        engine.random_step(rng, 50)
        engine.native.keep_saved(table, True)
        saved.append(engine.native.weight(table).copy())
    for number in range(18):
        engine.random_step(rng, 200)
        kind = ("all", "rows", "most_used", "dirty", "sampled", "most_drifted")[number % 6]
        snapshot = take(engine, kind, rng)
        result: list[Any] = []
        reader = threading.Thread(target=lambda s=snapshot, r=result: r.append(drain(s, 2)))  # type: ignore[misc]
        reader.start()
        while reader.is_alive():
            engine.random_step(rng, 100)
        reader.join()
        aborted = rng.random() < 0.4
        if aborted:
            snapshot.abort()
        else:
            snapshot.commit()
        for table, taken in enumerate(result[0]):
            assert len(taken.rows) > 0
            saved[table][taken.rows] = np.nan if aborted else taken.weight
            expected = distances(engine.native.weight(table), saved[table])
            assert np.array_equal(engine.native.changes(table), expected)


def test_rows_that_an_abort_never_handed_out_keep_their_copy() -> None:
    engine = Engine(rows=(20_000,), dim=32, max_staging_bytes=1 << 18)
    engine.native.keep_saved(0, True)
    engine.random_step(np.random.default_rng(0), 5000)
    before = engine.native.changes(0)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    chunk = snapshot.next_chunk()
    assert chunk is not None
    rows = chunk.rows.copy()
    chunk.close()
    snapshot.abort()
    after = engine.native.changes(0)
    assert (after[rows] == LARGEST).all()
    unknown = after == LARGEST
    assert 0 < np.count_nonzero(unknown) < 20_000
    assert np.array_equal(after[~unknown], before[~unknown])


def test_a_torn_snapshot_forgets_what_it_handed_out() -> None:
    """A row announced as written has no count, and is forgotten too."""
    engine = Engine(rows=(20_000,), dim=32, optimizer="none", max_staging_bytes=1 << 18)
    engine.native.keep_saved(0, True)
    engine.native.weight(0)[:3] += 1
    engine.call("mark_dirty", 0, np.arange(3))
    snapshot = engine.begin(Selection.all(), clears_dirty=False)
    chunk = snapshot.next_chunk()
    assert chunk is not None
    chunk.close()
    engine.call("mark_dirty", 0, np.arange(9, 10))
    with pytest.raises(CprError):
        drain(snapshot, 1)
    snapshot.abort()
    assert (engine.native.changes(0)[:3] == LARGEST).all()


def test_restored_rows_are_those_last_saved_once_refreshed() -> None:
    engine = Engine(rows=(50,), dim=4)
    engine.native.keep_saved(0, True)
    engine.random_step(np.random.default_rng(0), 100)
    changed = engine.native.changes(0)
    engine.native.reset_rows(0, 10, 20)
    engine.native.refresh_saved(0, 10, 20)
    changed[10:20] = 0
    assert np.array_equal(engine.native.changes(0), changed)
