"""Snapshots of every kind after each other, with updates and announced writes between and beside them."""

from __future__ import annotations

import numpy as np
import pytest
from engine import Engine, drain

from cpr_native._native import Selection
from cpr_native._tensor import describe

ROWS = 3000
KINDS = ("all", "dirty", "sampled", "most_used", "most_drifted", "rows")


class Model:
    """What the trackers of one table must say, row by row."""

    def __init__(self) -> None:
        self.dirty = np.zeros(ROWS, bool)
        self.counts = np.zeros(ROWS, np.int64)

    def step(self, engine: Engine, rng: np.random.Generator) -> None:
        ids = (ROWS * rng.random(rng.integers(1, 60)) ** 3).astype(np.int64)
        grad = rng.standard_normal((len(ids), engine.dim)).astype(np.float32)
        assert engine.step(ids, np.arange(len(ids) + 1), grad)
        np.add.at(self.counts, ids, 1)
        self.dirty[ids] = True

    def announce(self, engine: Engine, rng: np.random.Generator) -> None:
        rows = rng.integers(0, ROWS, 5)
        engine.native.mark_dirty(0, describe(rows))
        self.dirty[rows] = True

    def check(self, engine: Engine) -> None:
        assert np.array_equal(engine.native.dirty(0), self.dirty)
        assert np.array_equal(engine.native.counts(0), self.counts)


@pytest.mark.parametrize("seed", range(4))
def test_no_row_is_missed_or_taken_twice(seed: int) -> None:
    engine = Engine(rows=(ROWS,), dim=4, spec={"drift": True}, seed=seed)
    rng = np.random.default_rng(seed)
    model = Model()
    for _ in range(60):
        for _ in range(rng.integers(0, 4)):
            model.step(engine, rng)
        if rng.random() < 0.5:
            model.announce(engine, rng)
        kind = KINDS[rng.integers(len(KINDS))]
        dirty, counts, drift = model.dirty.copy(), model.counts.copy(), engine.native.drift(0)
        listed = engine.native.sampled_rows(0)
        weight = engine.native.weight(0).copy()
        most = kind.startswith("most")
        named = rng.random(ROWS) < rng.choice([0.01, 0.5])
        given = (40,) if most else (named,) if kind == "rows" else ()
        selection = getattr(Selection, kind)(*given)
        snapshot = engine.begin(selection, clears_dirty=kind in ("all", "dirty"))
        before = (model.dirty.copy(), model.counts.copy())
        model.dirty[:] = False
        model.counts[:] = 0
        for _ in range(rng.integers(0, 3)):
            model.step(engine, rng)  # its rows are settled by the update
        taken = drain(snapshot, 1)[0]
        expected = {
            "all": np.arange(ROWS), "dirty": np.flatnonzero(dirty), "sampled": listed,
            "rows": np.flatnonzero(named),
        }  # fmt: skip
        if kind in expected:
            assert np.array_equal(taken.rows, expected[kind])
        else:
            measure = counts if kind == "most_used" else drift
            assert len(np.unique(taken.rows)) == len(taken.rows)
            left = np.setdiff1d(np.arange(ROWS), taken.rows)
            assert (measure[taken.rows] > 0).all()
            # Within a bucket, at most 1/4 wide, rows are taken by hash.
            assert not len(taken.rows) or measure[left].max() <= 1.25 * measure[taken.rows].min() + 1e-9
        if len(taken.rows):
            assert np.array_equal(taken.weight, weight[taken.rows])
        assert np.array_equal(taken.count, counts[taken.rows])
        kept = np.ones(ROWS, bool)
        aborted = rng.random() < 0.3
        if not aborted:
            kept[taken.rows] = False
        model.dirty |= before[0] & (kept if kind in ("all", "dirty") else True)
        model.counts += before[1] * kept
        if aborted:
            snapshot.abort()
        else:
            snapshot.commit()
        model.check(engine)


@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"])
@pytest.mark.parametrize("dim", [1, 3, 16, 37, 128])
@pytest.mark.parametrize("shortest", [1, 400])
def test_runs_of_neighbours_are_taken_with_their_own_values(optimizer: str, dim: int, shortest: int) -> None:
    engine = Engine(rows=(ROWS,), dim=dim, optimizer=optimizer, spec={"drift": True})
    rng = np.random.default_rng(dim)
    every = np.arange(ROWS)
    grad = rng.standard_normal((ROWS, dim)).astype(np.float32)
    assert engine.step(every, np.arange(ROWS + 1), grad)
    drain(snapshot := engine.begin(Selection.all(), clears_dirty=True), 1)
    snapshot.commit()
    ends = np.cumsum(rng.integers(shortest, shortest + 9, ROWS))
    marked = every[np.searchsorted(ends, every, side="right") % 2 == 1]
    engine.native.mark_dirty(0, describe(marked))
    state, weight = engine.native.state(0), engine.native.weight(0)
    assert state is not None
    snapshot = engine.begin(Selection.dirty(), clears_dirty=True)
    taken = drain(snapshot, 1)[0]
    snapshot.commit()
    assert np.array_equal(taken.rows, marked)
    assert np.array_equal(taken.weight, weight[marked])
    assert np.array_equal(taken.state, state[marked].reshape(taken.state.shape))
