"""The copy of rows as last saved: what it follows, what an abort forgets, and distances from it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from reference.distance import SEGMENT, distances

from cpr_native._native import Selection, SnapshotInProgress
from cpr_native.errors import CprError

LARGEST = np.finfo(np.float32).max
DTYPES = ("float32", "float16", "bfloat16", "float64")
METRICS = ("l2", "l1", "tv")


def widened(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else values


def engine_of(dtype: str, rows: int, dim: int) -> Engine:
    return Engine(rows=(7, rows), dim=dim, optimizer="none", spec={"dtype": dtype}, seed=dim)


def changed_rows(engine: Engine, dtype: str, other: Engine) -> tuple[Any, Any]:
    """Every third row of table 1 becomes another; the rows and what they were, widened."""
    engine.native.keep_saved(1, True)
    now = engine.native.weight(1)
    then = now.copy()
    now[::3] = other.native.weight(1)[::3, : now.shape[1]]
    return widened(now, dtype), widened(then, dtype)


@pytest.mark.parametrize("dim", [1, 3, 16, 33, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_changes_are_the_references_distances(dtype: str, dim: int) -> None:
    rows = 9000 if dim < 16 else 300
    engine = engine_of(dtype, rows, dim)
    now, then = changed_rows(engine, dtype, engine_of(dtype, rows, dim + 1))
    expected = distances(now, then)
    for threads in (1, 2, 3):
        assert np.array_equal(engine.native.changes(1, threads=threads), expected)
    assert not expected[1::3].any()
    assert np.count_nonzero(expected) > rows / 4


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_metric_and_every_rest_of_a_row(dtype: str, metric: str) -> None:
    """Rows of 1 to 70 items; those of the last row can't be read beyond its end."""
    for dim in (1, 2, 5, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 70):
        engine = engine_of(dtype, 7, dim)
        engine.native.weight(1)[:] = (
            np.abs(engine.native.weight(1)) if dtype != "bfloat16" else (engine.native.weight(1) & 0x7FFF)
        )
        now, then = changed_rows(engine, dtype, engine_of(dtype, 7, dim + 1))
        assert np.array_equal(engine.native.changes(1, metric), distances(now, then, metric)), dim
    assert engine.native.changes(1, metric).any()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_are_summed_in_segments_by_any_number_of_threads(dtype: str, metric: str) -> None:
    for dim in (SEGMENT, SEGMENT + 1, 3 * SEGMENT + 21):
        engine = engine_of(dtype, 4, dim)
        now, then = changed_rows(engine, dtype, engine_of(dtype, 4, dim + 1))
        expected = distances(now, then, metric)
        assert np.count_nonzero(expected) == 2
        for threads in (1, 2, 5):
            assert np.array_equal(engine.native.changes(1, metric, threads=threads), expected)


def test_total_variation_is_that_of_distributions() -> None:
    engine = engine_of("float32", 6, 4)
    counts = engine.native.weight(1)
    counts[:] = [[1, 2, 3, 2], [8, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [4, 4, 0, 0], [1, 1, 1, 1]]
    engine.native.keep_saved(1, True)
    counts[:] = [[2, 4, 6, 4], [0, 0, 4, 0], [1, 1, 0, 0], [0, 0, 0, 0], [4, 0, 4, 0], [0, 0, 0, 0]]
    assert engine.native.changes(1, "tv").tolist() == [0, 1, 0.5, 0, 0.5, 0.5]
    assert engine.native.changes(1, "l1").tolist() == [8, 12, 2, 0, 8, 4]
    assert engine.native.changes(1, metric="l2")[2] == np.sqrt(np.float32(2))
    counts[0] = 3e38  # their sum isn't a number that floats have
    assert engine.native.changes(1, "tv")[0] == LARGEST
    with pytest.raises(ValueError, match="metric: expected l2, l1 or tv, got 'linf'"):
        engine.native.changes(1, "linf")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_the_largest_float(dtype: str, metric: str) -> None:
    engine = engine_of(dtype, 6, 5)
    engine.native.keep_saved(1, True)
    infinity, nan = (0x7F80, 0x7FC0) if dtype == "bfloat16" else (np.inf, np.nan)
    now = engine.native.weight(1)
    now[1, 0], now[2, 4] = infinity, nan
    assert engine.native.changes(1, metric).tolist() == [0, LARGEST, LARGEST, 0, 0, 0]
    engine.native.refresh_saved(1, 0, 6)  # infinity minus infinity is NaN
    assert engine.native.changes(1, metric).tolist() == [0, LARGEST, LARGEST, 0, 0, 0]


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
