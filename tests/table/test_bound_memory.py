"""Tables in the caller's memory: weights and torch's optimizer state, and rows loaded by several threads."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain, trained

from cpr_native._native import CprError, Selection


class Owner:
    """Something that lives as long as the engine needs the memory."""


def bound(rows: int = 60, dim: int = 5, dtype: str = "float32", **spec: Any) -> tuple[Engine, Any]:
    engine = Engine(rows=(rows,), dim=dim, optimizer="none", spec={"external": True, "dtype": dtype, **spec})
    kind = np.uint16 if dtype == "bfloat16" else dtype
    weight = np.arange(rows * dim).reshape(rows, dim).astype(kind)
    engine.native.bind_weight(0, (weight.ctypes.data, weight.shape, dtype), weight)
    return engine, weight


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_the_callers_memory_is_the_table(dtype: str) -> None:
    engine, weight = bound(dtype=dtype)
    assert engine.native.memory()["weight"] == 0
    assert engine.native.weight(0).ctypes.data == weight.ctypes.data
    assert engine.native.num_dirty(0) == 60
    assert engine.native.dirty(0).all()
    kept = weight.copy()
    ids = np.array([3, 59, 0])
    out, batch = engine.lookup(ids, np.arange(4))
    expected = (kept.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else kept
    assert np.array_equal(out, expected[ids])
    grad = np.ones(out.shape, out.dtype)
    rows, values = engine.call("gradient", batch, grad, table=0, threads=1)
    assert rows.tolist() == [0, 3, 59]
    assert np.array_equal(values, grad)
    engine.native.reset_rows(0, 0, 60)
    assert np.array_equal(weight, kept)  # nothing to reset to
    assert not engine.native.counts(0).any()


def test_nothing_works_before_the_memory_is_bound() -> None:
    engine = Engine(rows=(4,), optimizer="none", spec={"external": True})
    ids, ones = np.array([1]), np.ones((1, 8), np.float32)
    calls = [
        lambda: engine.native.weight(0),
        lambda: engine.lookup(ids, np.arange(2)),
        lambda: engine.begin(Selection.all(), clears_dirty=True),
        lambda: engine.call("load_rows", 0, ids, ones, None),
        lambda: engine.native.discard_rows(0, 0, 1),
        lambda: engine.call("renormalise", 0, ids, 1.0, 2.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"external table 't0' has n.*bind_weight first"):
            call()


def test_memory_of_another_shape_or_dtype_is_refused() -> None:
    engine, weight = bound()
    for shape in ((60, 6), (59, 5), (300,)):
        with pytest.raises(ValueError, match="weight: expected shape"):
            engine.native.bind_weight(0, (weight.ctypes.data, shape, "float32"), weight)
    with pytest.raises(TypeError, match="weight: expected dtype float32, got float16"):
        engine.native.bind_weight(0, (weight.ctypes.data, (60, 5), "float16"), weight)
    assert engine.native.weight(0).ctypes.data == weight.ctypes.data


def test_the_owner_lives_until_other_memory_is_bound() -> None:
    engine, first = bound()
    owners = [Owner(), Owner()]
    alive = [weakref.ref(owner) for owner in owners]
    second = first + 1
    for owner, weight in zip(owners, (first, second), strict=True):
        engine.native.bind_weight(0, (weight.ctypes.data, weight.shape, "float32"), owner)
    del owner, owners
    gc.collect()
    assert alive[0]() is None
    assert alive[1]() is not None
    view = engine.native.weight(0)
    assert np.array_equal(view, second)
    del engine
    gc.collect()
    assert alive[1]() is not None  # the view needs it
    del view
    gc.collect()
    assert alive[1]() is None


def test_memory_that_moves_fails_a_running_snapshot_and_is_dirty() -> None:
    engine = Engine(
        rows=(100_000,), dim=32, optimizer="none", spec={"external": True}, max_staging_bytes=1 << 20
    )
    weights = [np.full((100_000, 32), value, np.float32) for value in (1, 2)]
    engine.native.bind_weight(0, (weights[0].ctypes.data, weights[0].shape, "float32"), weights[0])
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    engine.native.bind_weight(0, (weights[1].ctypes.data, weights[1].shape, "float32"), weights[1])
    weights[0][:] = np.nan
    with pytest.raises(CprError, match="written from outside"):
        drain(snapshot, 1)
    snapshot.abort()
    assert engine.native.dirty(0).all()
    again = engine.begin(Selection.dirty(), clears_dirty=True, blocking=True)
    taken = drain(again, 1)[0]
    again.commit()
    assert np.array_equal(taken.weight, weights[1])


def with_state(arrays: list[np.ndarray[Any, Any]], rows: int = 60) -> tuple[Engine, np.ndarray[Any, Any]]:
    engine, weight = bound(rows)
    engine.native.bind_state(0, [(a.ctypes.data, a.shape, "float32") for a in arrays], arrays)
    return engine, weight


def random_arrays(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    "shapes", [[(60,)], [(60, 1)], [(60, 5)], [(60, 5), (60, 5)], [(60, 5), (60,), (60, 2)]]
)
def test_torchs_state_is_saved_and_loaded_with_its_rows(shapes: list[tuple[int, ...]]) -> None:
    """Columns of the arrays one after the other; a snapshot copies them, `load_rows` writes them."""
    arrays = random_arrays(*shapes)
    engine, weight = with_state(arrays)
    columns = np.concatenate([array.reshape(60, -1) for array in arrays], axis=1)
    shaped = columns[:, 0] if columns.shape[1] == 1 else columns
    assert engine.native.state_columns(0) == columns.shape[1]
    assert np.array_equal(engine.native.state(0), shaped)
    snapshot = engine.begin(Selection.all(), clears_dirty=True, blocking=True)
    kept, kept_weight = shaped.copy(), weight.copy()
    for array in arrays:  # torch goes on at once
        array += 1.0
    weight += 1.0
    taken = drain(snapshot, 1)[0]
    snapshot.commit()
    assert np.array_equal(taken.weight, kept_weight)
    assert np.array_equal(taken.state, kept)
    some = np.array([7, 8, 30])
    engine.call("load_rows", 0, some, taken.weight[some].copy(), taken.state[some].copy())
    assert np.array_equal(engine.native.state(0)[some], kept[some])
    assert np.array_equal(arrays[0].reshape(60, -1)[some], columns[some, : arrays[0].size // 60])
    others = np.setdiff1d(np.arange(60), some)
    assert np.array_equal(engine.native.state(0)[others], kept[others] + 1.0)
    engine.native.discard_rows(0, 0, 2)
    assert all(np.isnan(array[:2]).all() and np.isfinite(array[2:]).all() for array in arrays)
    assert np.isnan(weight[:2]).all()


def test_state_that_does_not_fit_is_refused() -> None:
    arrays = random_arrays((60, 5))
    engine, weight = with_state(arrays)
    good = (arrays[0].ctypes.data, (60, 5), "float32")
    for shape in ((59, 5), (60, 5, 1), (60, 0), ()):
        with pytest.raises(ValueError, match="arrays: expected"):
            engine.native.bind_state(0, [good, (arrays[0].ctypes.data, shape, "float32")], arrays)
    with pytest.raises(ValueError, match="arrays: expected at most 4, got 5"):
        engine.native.bind_state(0, [good] * 5, arrays)
    with pytest.raises(TypeError, match="arrays: expected dtype float32, got float64"):
        engine.native.bind_state(0, [(arrays[0].ctypes.data, (60, 5), "float64")], arrays)
    with pytest.raises(ValueError, match="expected optimizer none"):
        trained(rows=(60,), dim=5, optimizer="sgd").native.bind_state(0, [good], arrays)
    with pytest.raises(ValueError, match="state: expected 5 values a row"):
        engine.call("load_rows", 0, np.array([1]), weight[:1].copy(), None)
    assert np.array_equal(engine.native.state(0), arrays[0])
    engine.native.bind_state(0, [], None)
    assert engine.native.state(0) is None
    assert engine.native.state_columns(0) == 0


def test_state_is_not_bound_during_a_snapshot() -> None:
    arrays = random_arrays((60, 5))
    engine, _ = with_state(arrays)
    snapshot = engine.begin(Selection.all(), clears_dirty=True, blocking=True)
    with pytest.raises(CprError, match="bind_state: expected no snapshot in flight"):
        engine.native.bind_state(0, [], None)
    snapshot.abort()
    assert engine.native.state_columns(0) == 5


@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "adam", "partial_row_wise_adam"])
def test_rows_are_loaded_by_several_threads_as_by_one(optimizer: str) -> None:
    rows, dim = 50_000, 3
    rng = np.random.default_rng(0)
    some = np.sort(rng.choice(rows, 40_000, replace=False))
    engines = [
        Engine(rows=(rows,), dim=dim, optimizer=optimizer, spec={"drift": True}, seed=1) for _ in range(2)
    ]
    weight = rng.standard_normal((len(some), dim)).astype(np.float32)
    columns = engines[0].native.state_columns(0)
    state = rng.random((len(some), columns)).astype(np.float32)
    state = state[:, 0].copy() if columns == 1 else state
    for engine, threads in zip(engines, (1, 5), strict=True):
        engine.random_step(np.random.default_rng(5), 3000)
        engine.call("load_rows", 0, some, weight, state, dirty=True, threads=threads)
    for a, b in zip(engines[0].rows_of(0), engines[1].rows_of(0), strict=True):
        assert a is not None
        assert np.array_equal(a, b)
    assert np.array_equal(engines[1].native.weight(0)[some], weight)
    assert np.array_equal(engines[1].native.state(0)[some], state)
    for engine in engines:
        assert engine.native.num_dirty(0) == engine.native.dirty(0).sum() >= 40_000
        assert engine.native.count_histogram(0)[0] == (engine.native.counts(0) == 0).sum()
        assert engine.native.drift_histogram(0)[0] == (engine.native.drift(0) == 0).sum()


@pytest.mark.parametrize("threads", [1, 5])
def test_the_last_of_rows_that_come_twice_stays(threads: int) -> None:
    rows = 40_000
    engine = Engine(rows=(rows,), dim=2, optimizer="none")
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(rows), 2))
    weight = np.arange(4 * rows, dtype=np.float32).reshape(2 * rows, 2)
    engine.call("load_rows", 0, order, weight, None, dirty=True, threads=threads)
    last = np.zeros(rows, np.int64)
    last[order] = np.arange(2 * rows)
    assert np.array_equal(engine.native.weight(0), weight[last])
    assert engine.native.num_dirty(0) == rows
