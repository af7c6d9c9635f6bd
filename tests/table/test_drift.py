"""The drift tracker at rest: its values, its histogram, and what clears it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine import Engine, drain
from reference import ReferenceCollection
from reference.drift import MAX_DRIFT, add_drift, drift_histogram, step_norms
from reference.optimizers import decayed

from cpr_native._native import Selection

OPTIMIZERS = ["sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"]


def drifting(rows: tuple[int, ...] = (50, 7), **options: Any) -> Engine:
    spec = {"drift": True, **options.pop("spec", {})}
    return Engine(rows=rows, spec=spec, **options)


def check_histogram(engine: Engine) -> None:
    for table in range(len(engine.rows)):
        assert np.array_equal(
            engine.native.drift_histogram(table), drift_histogram(engine.native.drift(table))
        )


@pytest.mark.parametrize("dim", [1, 8, 17, 40])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("dtype", "decay"), [("float32", 0.0), ("float32", 0.1), ("bfloat16", 0.0)])
def test_drift_is_the_sum_of_the_norms_of_the_steps(
    dtype: str, decay: float, optimizer: str, dim: int
) -> None:
    """Bit for bit, with rows that come several times in a batch, for every optimizer."""
    engine = drifting(
        optimizer=optimizer, dim=dim, spec={"dtype": dtype}, settings={"weight_decay": decay, "eps": 1e-6}
    )
    reference = ReferenceCollection(
        [widened(engine, t) for t in range(2)],
        [0, 1],
        optimizer=optimizer,
        lr=engine.learning_rate,
        eps=1e-6,
        weight_decay=decay,
        dtypes=[dtype] * 2,
        seed=engine.seed,
        names=["t0", "t1"],
    )
    expected = [np.zeros(n, np.float32) for n in engine.rows]
    rng = np.random.default_rng(dim)
    for step in range(4):
        ids = np.concatenate([rng.integers(0, n, 40) for n in engine.rows])
        offsets = np.arange(len(ids) + 1)
        grad = rng.standard_normal((40, 2 * dim)).astype(np.float32)
        rows_and_sums = [reference.gradients(t, ids, offsets, grad)[1:] for t in range(2)]
        gradients = [
            decayed(reference.weights[t], rows, sums, weight_decay=decay)
            for t, (rows, sums) in enumerate(rows_and_sums)
        ]
        reference.update(ids, offsets, grad)
        assert engine.step(ids, offsets, grad)
        for t, (rows, _) in enumerate(rows_and_sums):
            state = reference.states[t]
            norms = step_norms(
                optimizer,
                gradients[t],
                None if state is None else state[rows],
                lr=engine.learning_rate,
                eps=1e-6,
                betas=(0.9, 0.999),
                t=step + 1,
            )
            expected[t][rows] = add_drift(expected[t][rows], norms)
            assert np.array_equal(engine.native.drift(t), expected[t])
        check_histogram(engine)
    assert (expected[0] > 0).any()


def widened(engine: Engine, table: int) -> np.ndarray[Any, Any]:
    weight = engine.native.weight(table)
    if weight.dtype == np.uint16:
        return (weight.astype(np.uint32) << 16).view(np.float32)
    return weight.copy()


def test_drift_stays_finite() -> None:
    """A step whose norm overflows, or is NaN, leaves the largest float; so does every later one."""
    engine = drifting(rows=(4,), optimizer="sgd", learning_rate=1.0)
    huge = np.full((1, 8), 3e38, np.float32)
    for row, grad in ((0, huge), (1, huge / 4), (0, huge)):
        assert engine.step(np.array([row]), np.arange(2), grad)
    assert engine.native.drift(0).tolist() == [MAX_DRIFT, MAX_DRIFT, 0.0, 0.0]
    engine.native.learning_rate = 0.0  # 0 * infinity
    assert engine.step(np.array([2]), np.arange(2), huge)
    assert engine.native.drift(0)[2] == MAX_DRIFT
    check_histogram(engine)
    assert engine.native.drift_histogram(0)[255] == 3
    snapshot = engine.begin(Selection.most_drifted(3), clears_dirty=False)
    assert drain(snapshot, 1)[0].rows.tolist() == [0, 1, 2]
    snapshot.abort()
    assert engine.native.drift(0).tolist() == [MAX_DRIFT, MAX_DRIFT, MAX_DRIFT, 0.0]
    check_histogram(engine)


def test_a_skipped_step_and_a_frozen_table_drift_nowhere() -> None:
    engine = drifting()
    ids, offsets = np.array([3, 2]), np.arange(3)
    grad = np.ones((1, 16), np.float32)
    grad[0, 5] = np.inf
    assert not engine.step(ids, offsets, grad)
    assert not engine.native.drift(0).any()
    _, batch = engine.lookup(ids, offsets)
    engine.call("update", batch, np.ones((1, 16), np.float32), threads=1, frozen=[0])
    assert not engine.native.drift(0).any()
    assert engine.native.drift(1).nonzero()[0].tolist() == [2]


def with_drift(drift: list[float], **options: Any) -> Engine:
    engine = drifting(rows=(len(drift),), **options)
    engine.call("set_drift", 0, np.array(drift, np.float32))
    return engine


def test_set_drift_replaces_every_value() -> None:
    values = [0.0, 1.5, 2.0**-41, 2.0**-40, 2.0**24, 3e38, 1e-45, float("inf")]
    engine = with_drift([7.0] * 8)
    engine.call("set_drift", 0, np.array(values, np.float32))
    assert engine.native.drift(0).tolist() == np.array([*values[:7], MAX_DRIFT], np.float32).tolist()
    check_histogram(engine)
    assert engine.native.drift_histogram(0)[[0, 255]].tolist() == [4, 3]  # below 1.25 * 2^-40 is none


@pytest.mark.parametrize("bad", [-1.0, float("nan"), -np.inf])
def test_set_drift_refuses_what_is_no_sum_of_norms(bad: float) -> None:
    engine = with_drift([1.0, 2.0])
    with pytest.raises(ValueError, match=r"drift: expected at least 0, got .* at row 1"):
        engine.call("set_drift", 0, np.array([5.0, bad], np.float32))
    assert engine.native.drift(0).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="drift: expected shape"):
        engine.call("set_drift", 0, np.ones(3, np.float32))
    with pytest.raises(TypeError, match="float32"):
        engine.call("set_drift", 0, np.ones(2, np.float64))


def test_what_clears_the_drift_and_what_keeps_it() -> None:
    """Rows loaded, reset or cleared start anew; trackers set and rows announced keep theirs."""
    engine = with_drift([1.0, 2.0, 3.0, 4.0])
    native = engine.native
    ones = np.ones((1, 8), np.float32)
    engine.call("load_rows", 0, np.array([1]), ones, ones[0, :1].copy())
    assert native.drift(0).tolist() == [1.0, 0.0, 3.0, 4.0]
    native.reset_rows(0, 2, 3)
    assert native.drift(0).tolist() == [1.0, 0.0, 0.0, 4.0]
    native.mark_dirty(0)
    engine.call("set_trackers", 0, np.full(4, 5, np.uint32))
    assert native.drift(0).tolist() == [1.0, 0.0, 0.0, 4.0]
    check_histogram(engine)
    native.clear_trackers(0, 0, 1, dirty=False)
    assert native.drift(0).tolist() == [0.0, 0.0, 0.0, 4.0]
    check_histogram(engine)
    assert native.counts(0).tolist() == [0, 5, 5, 5]
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    drain(snapshot, 1)
    snapshot.commit()
    assert not native.drift(0).any()
    check_histogram(engine)


def test_tables_without_drift_say_so() -> None:
    engine = Engine(rows=(4,))
    for call in (
        lambda: engine.native.drift(0),
        lambda: engine.call("set_drift", 0, np.ones(4, np.float32)),
    ):
        with pytest.raises(ValueError, match="doesn't track it"):
            call()
    with pytest.raises(ValueError, match="doesn't track what its selection asks for"):
        engine.begin(Selection.most_drifted(1), clears_dirty=False)
    with pytest.raises(ValueError, match="tracked by fused optimizers only"):
        drifting(optimizer="none")
    with pytest.raises(ValueError, match="rows: expected at least 1"):
        Selection.most_drifted(0)


def test_memory_of_the_drift() -> None:
    with_it, without = drifting(rows=(1000,)), Engine(rows=(1000,))
    assert with_it.native.memory()["metadata"] == 16_000
    assert without.native.memory()["metadata"] == 8_000
