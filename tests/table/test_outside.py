"""Rows that are tracked or changed outside of updates: max_norm, `track`, dense gradients."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain, trained
from reference import as_floats

from cpr_native._native import Selection

NORMS = [1.0, 2.0, 3.0, 0.5, np.inf]


def norms(rows: np.ndarray[Any, Any], p: float) -> np.ndarray[Any, Any]:
    """The p-norms of `rows` [n, dim], summed in float64 in order."""
    result = np.zeros(len(rows))
    for column in np.abs(rows.astype(np.float64)).T:
        result = np.maximum(result, column) if np.isinf(p) else result + column**p
    return result if np.isinf(p) else result ** (1.0 / p)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_rows_above_the_norm_are_scaled(dtype: str, p: float, width: type) -> None:
    """Named several times they are scaled once; others are not touched; dirty, not counted."""
    engine = Engine(rows=(200,), dim=5, optimizer="none", spec={"dtype": dtype})
    before = engine.native.weight(0).copy()
    ids = np.random.default_rng(0).integers(0, 200, 150).astype(width)
    kept = ids.copy()
    length = norms(before, p)
    limit = float(np.median(length))
    named = np.isin(np.arange(200), ids)
    scaled = named & (length > limit)
    assert engine.call("renormalise", 0, ids, limit, p) == scaled.sum() > 10
    after = engine.native.weight(0)
    expected = before * (limit / (length + 1e-7)).astype(before.dtype)[:, None]
    assert np.array_equal(after[~scaled], before[~scaled])
    if p in (1.0, 2.0, np.inf):
        assert np.array_equal(after[scaled], expected[scaled])
    assert np.allclose(after[scaled], expected[scaled], rtol=1e-6, atol=0)
    assert np.array_equal(ids, kept)
    assert np.array_equal(engine.native.dirty(0), scaled)
    assert engine.native.num_dirty(0) == scaled.sum()
    assert not engine.native.counts(0).any()
    assert engine.call("renormalise", 0, ids, limit, p) <= scaled.sum()
    assert engine.call("renormalise", 0, ids, limit * 1.001, p) == 0


@pytest.mark.parametrize("p", NORMS)
def test_rows_without_a_norm_stay(p: float) -> None:
    """A NaN makes every norm NaN, not above the limit; an infinite row becomes NaN and 0, as in torch."""
    engine = Engine(rows=(3,), dim=4, optimizer="none")
    weight = engine.native.weight(0)
    weight[0] = [np.nan, 5, 5, 5]
    weight[1] = [5, 5, 5, np.nan]
    weight[2] = [np.inf, 5, -5, 0]
    before = weight.copy()
    assert engine.call("renormalise", 0, np.arange(3), 1.0, p) == 1
    assert weight[:2].tobytes() == before[:2].tobytes()
    assert np.isnan(weight[2, 0])
    assert weight[2, 1:].tolist() == [0, 0, 0]


def test_a_bad_id_writes_nothing() -> None:
    engine = trained(rows=(100,))
    before = engine.rows_of(0)
    for bad in (-1, 100):
        ids = np.array([1, 2, bad, 3])
        with pytest.raises(IndexError, match=f"table 't0', got id {bad} at position 2"):
            engine.call("renormalise", 0, ids, 1e-3, 2.0)
        with pytest.raises(IndexError, match=f"got id {bad}"):
            engine.call("track", 0, ids)
    for max_norm, p in ((-1.0, 2.0), (np.nan, 2.0), (np.inf, 2.0), (1.0, 0.0), (1.0, np.nan)):
        with pytest.raises(ValueError, match="norm"):
            engine.call("renormalise", 0, np.array([1]), max_norm, p)
    with pytest.raises(TypeError, match="ids"):
        engine.call("renormalise", 0, np.array([1.0]), 1.0, 2.0)
    with pytest.raises(ValueError, match="ids: expected shape"):
        engine.call("track", 0, np.array([[1]]))
    for a, b in zip(before, engine.rows_of(0), strict=True):
        assert np.array_equal(a, b)
    assert engine.call("renormalise", 0, np.zeros(0, np.int64), 1e-3, 2.0) == 0


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_v4_rows_renormalised_during_a_snapshot_are_saved_as_they_were(end: str) -> None:
    """The snapshot has the rows of its begin; the changed ones are dirty afterwards."""
    rows = 30_000
    engine = Engine(rows=(rows,), dim=16, max_staging_bytes=1 << 19)
    rng = np.random.default_rng(0)
    engine.random_step(rng, 2000)
    for round_ in range(6):
        weight, state, words = engine.rows_of(0)
        assert state is not None
        snapshot = engine.begin(Selection.all(), clears_dirty=True)
        result: list[Any] = []
        reader = threading.Thread(target=lambda s=snapshot, r=result: r.append(drain(s, 1)[0]))
        touched = np.zeros(rows, np.bool_)
        while not reader.ident or reader.is_alive():
            ids = rng.integers(0, rows, 300)
            above = norms(engine.native.weight(0)[ids], 2.0) > 0.9 - 0.1 * round_
            assert engine.call("renormalise", 0, ids, 0.9 - 0.1 * round_, 2.0) == len(np.unique(ids[above]))
            touched[ids[above]] = True
            if not reader.ident:  # the walk waits for it, so some rows are changed before it comes to them
                reader.start()
        reader.join()
        taken = result[0]
        assert np.array_equal(taken.rows, np.arange(rows))
        assert np.array_equal(taken.weight, weight)
        assert np.array_equal(taken.state, state)
        assert np.array_equal(taken.count, words & (2**27 - 1))
        getattr(snapshot, end)()
        dirty = touched if end == "commit" else touched | ((words & 2**30) != 0)
        assert np.array_equal(engine.native.dirty(0), dirty)
        assert engine.native.num_dirty(0) == dirty.sum()
        assert touched.any()


def test_track_counts_and_samples_as_an_update_does() -> None:
    """The same steps, once with gradients and once tracked alone: same counts and list, no dirty row."""
    ids = np.random.default_rng(0).integers(0, 500, (4, 300))
    updated, tracked = (Engine(rows=(500,), optimizer=o, seed=9) for o in ("sgd", "none"))
    for step in range(4):
        grad = np.ones((300, 8), np.float32)
        assert updated.step(ids[step], np.arange(301), grad)
        tracked.native.step = step
        tracked.call("track", 0, ids[step].astype(np.int32) if step % 2 else ids[step])
    before = Engine(rows=(500,), optimizer="none", seed=9).native.weight(0)
    assert np.array_equal(updated.native.counts(0), tracked.native.counts(0))
    assert np.array_equal(updated.native.sampled_rows(0), tracked.native.sampled_rows(0))
    assert np.array_equal(updated.native.count_histogram(0), tracked.native.count_histogram(0))
    assert not tracked.native.dirty(0).any()
    assert tracked.native.num_dirty(0) == 0
    assert np.array_equal(tracked.native.weight(0), before)
    tracked.call("track", 0, np.zeros(0, np.int64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rows_of_a_dense_gradient_are_marked_where_it_is_not_zero(dtype: str) -> None:
    """Only +0.0 is zero: -0.0 changes a weight of -0.0, the smallest denormal may; anywhere in the row."""
    bits = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}[dtype]
    sign = bits(1) << bits(np.dtype(bits).itemsize * 8 - 1)
    grad = np.zeros((70, 7), bits)
    grad[10:20] = sign
    marked = {0: (0, 1), 3: (6, sign | bits(1)), 15: (3, ~bits(0)), 40: (5, ~sign >> bits(1)), 69: (6, 1)}
    for row, (column, value) in marked.items():
        grad[row, column] = value
    engine = trained(rows=(70,), dim=7, steps=0, optimizer="none")
    reference = (grad.ctypes.data, grad.shape, dtype)
    expected = sorted({*marked, *range(10, 20)})
    for _ in range(2):
        assert engine.native.mark_dirty_nonzero(0, reference) == len(expected)
        assert np.flatnonzero(engine.native.dirty(0)).tolist() == expected
        assert engine.native.num_dirty(0) == len(expected)
    assert not engine.native.counts(0).any()
    with pytest.raises(ValueError, match="grad: expected shape"):
        engine.native.mark_dirty_nonzero(0, (grad.ctypes.data, (7, 70), dtype))
    with pytest.raises(ValueError, match=r"grad: .*dtype"):
        engine.native.mark_dirty_nonzero(0, (grad.ctypes.data, grad.shape, "int32"))


def test_a_dense_gradient_fails_a_running_walk() -> None:
    engine = Engine(rows=(100_000,), dim=32, optimizer="none", max_staging_bytes=1 << 20)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    grad = np.zeros((100_000, 32), np.float32)
    grad[7, 3] = 1.0
    assert engine.call("mark_dirty_nonzero", 0, grad) == 1
    assert snapshot.status == "failed"
    snapshot.abort()
    assert np.flatnonzero(engine.native.dirty(0)).tolist() == [7]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_rows_are_measured_and_scaled_in_float32(dtype: str) -> None:
    engine = Engine(rows=(50,), dim=9, optimizer="none", spec={"dtype": dtype})
    wide = as_floats(engine.native.weight(0), dtype).copy()
    assert engine.call("renormalise", 0, np.arange(50), 0.5, 2.0) > 10
    after = as_floats(engine.native.weight(0), dtype)
    length = norms(wide, 2.0)
    expected = np.where((length > 0.5)[:, None], wide * (0.5 / length)[:, None], wide)
    assert np.allclose(after, expected, rtol=2**-10 if dtype == "float16" else 2**-7)
