"""Snapshots of the most drifted rows: which are taken, what is cleared, what comes back."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engine import Engine, Taken, drain
from reference import table_key
from reference.drift import drift_histogram, most_drifted

from cpr_native._native import Selection

SEED = 3


def with_drift(drift: np.ndarray[Any, Any], **options: Any) -> Engine:
    engine = Engine(rows=(len(drift),), spec={"drift": True}, seed=SEED, optimizer="sgd", **options)
    engine.call("set_drift", 0, drift.astype(np.float32))
    return engine


def take(engine: Engine, quota: int, *, end: str = "commit", **options: Any) -> np.ndarray[Any, Any]:
    snapshot = engine.begin(Selection.most_drifted(quota), clears_dirty=False, **options)
    taken = drain(snapshot, 1)[0].rows
    getattr(snapshot, end)()
    return taken


def check_histogram(engine: Engine) -> None:
    for table in range(len(engine.rows)):
        drift = engine.native.drift(table)
        assert np.array_equal(engine.native.drift_histogram(table), drift_histogram(drift))


@pytest.mark.parametrize("quota", [1, 7, 100, 999, 1000, 5000])
def test_the_highest_are_taken_and_the_quota_is_met_nearly(quota: int) -> None:
    rng = np.random.default_rng(quota)
    drift = rng.lognormal(0.0, 3.0, 1000).astype(np.float32)
    engine = with_drift(drift)
    taken = take(engine, quota)
    assert np.array_equal(taken, most_drifted(drift, quota, key=table_key(SEED, "t0"), sequence=0))
    assert abs(len(taken) - min(quota, 1000)) <= 2 + 4 * np.sqrt(quota)
    if 0 < len(taken) < 1000:
        # A bucket is at most 1/4 wide.
        assert np.delete(drift, taken).max() <= 1.25 * drift[taken].min()
    drift[taken] = 0.0
    assert np.array_equal(engine.native.drift(0), drift)
    check_histogram(engine)


def test_ties_are_taken_evenly_and_not_by_row() -> None:
    """All drifts equal: the rows are a sample of the whole table, another one in the next snapshot."""
    drift = np.full(20_000, 2.0, np.float32)
    engine = with_drift(drift)
    first = take(engine, 2000)
    assert abs(len(first) - 2000) < 200
    assert np.histogram(first, 10, (0, 20_000))[0].min() > 120
    engine.call("set_drift", 0, drift)
    second = take(engine, 2000)
    assert np.array_equal(second, most_drifted(drift, 2000, key=table_key(SEED, "t0"), sequence=1))
    assert len(np.intersect1d(first, second)) < 500


def test_a_quota_of_one_takes_the_one_that_stands_out() -> None:
    drift = np.full(100, 1.0, np.float32)
    drift[63] = 9.0
    assert take(with_drift(drift), 1).tolist() == [63]


def test_rows_that_did_not_drift_are_never_taken() -> None:
    drift = np.zeros(100, np.float32)
    drift[[3, 5]] = [1e-3, 2.0]
    drift[7] = 2.0**-41
    engine = with_drift(drift)
    assert take(engine, 50, end="abort").tolist() == [3, 5]
    assert np.array_equal(engine.native.drift(0), drift)
    take(engine, 50)
    assert len(take(engine, 50)) == 0
    assert engine.native.drift(0)[7] == drift[7]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("kind", ["all", "dirty", "most_used", "sampled", "most_drifted"])
def test_any_snapshot_clears_the_drift_of_what_it_takes_and_an_abort_gives_it_back(
    kind: str, blocking: bool
) -> None:
    engine = Engine(rows=(400, 30), spec={"drift": True})
    rng = np.random.default_rng(0)
    for _ in range(4):
        engine.random_step(rng, 60)
    before = [engine.native.drift(t) for t in range(2)]
    for end in ("abort", "commit"):
        selection = getattr(Selection, kind)(*([10] if "most" in kind else []))
        snapshot = engine.begin(
            selection, selection, clears_dirty=kind == "all", blocking=blocking, shard_rows=[100, 10]
        )
        taken = drain(snapshot, 2)
        getattr(snapshot, end)()
        for t in range(2):
            expected = before[t].copy()
            expected[taken[t].rows] = 0.0 if end == "commit" else expected[taken[t].rows]
            assert len(taken[t].rows) > 0
            assert np.array_equal(engine.native.drift(t), expected)
        check_histogram(engine)


def unit_step(engine: Engine, rng: np.random.Generator, ids: int, grown: list[np.ndarray[Any, Any]]) -> None:
    """One step of SGD at rate 1 with unlike rows and steps of whole lengths, which float32 adds exactly."""
    rows = [np.unique((n * rng.random(ids) ** 2).astype(np.int64))[: ids // 8] for n in engine.rows]
    bags = len(rows[0])
    rows = [np.resize(r, bags) if len(r) < bags else r[:bags] for r in rows]
    assert all(len(np.unique(r)) == bags for r in rows)
    lengths = rng.integers(1, 9, (bags, len(rows))).astype(np.float32)
    grad = np.zeros((bags, engine.native.output_dim), np.float32)
    for t, r in enumerate(rows):
        grad[:, t * engine.dim + int(rng.integers(engine.dim))] = lengths[:, t]
        grown[t][r] += lengths[:, t]
    assert engine.step(np.concatenate(rows), np.arange(len(rows) * bags + 1), grad)


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("kind", ["most_drifted", "all", "dirty"])
def test_rows_are_taken_by_the_rule_during_updates(kind: str, end: str) -> None:
    """Which rows, their weights and drifts are those at begin; what they drift meanwhile is kept.

    The table is large beside the staging memory, so that both the walk and the update pass take rows.
    """
    rows = (60_000, 20_000)
    engine = Engine(
        rows=rows, dim=16, spec={"drift": True}, seed=SEED, optimizer="sgd", learning_rate=1.0,
        max_staging_bytes=1 << 19,
    )  # fmt: skip
    rng = np.random.default_rng(11)
    total = [np.zeros(n, np.float32) for n in rows]
    taken_rows = 0
    for sequence in range(8):
        for _ in range(3):
            unit_step(engine, rng, 8000, total)
        drift = [engine.native.drift(t) for t in range(2)]
        weight = [engine.native.weight(t).copy() for t in range(2)]
        dirty = [engine.native.dirty(t) for t in range(2)]
        for t in range(2):
            assert np.array_equal(drift[t], total[t])
        arguments = [(n // 10,) if kind == "most_drifted" else () for n in rows]
        selections = [getattr(Selection, kind)(*given) for given in arguments]
        snapshot = engine.begin(*selections, clears_dirty=kind != "most_drifted")
        result: list[list[Taken]] = []
        reader = threading.Thread(target=lambda s=snapshot, r=result: r.append(drain(s, 2)))  # type: ignore[misc]
        reader.start()
        while reader.is_alive():
            unit_step(engine, rng, 4000, total)
        reader.join()
        getattr(snapshot, end)()
        for t, taken in enumerate(result[0]):
            if kind == "most_drifted":
                key = table_key(SEED, f"t{t}")
                expected = most_drifted(drift[t], rows[t] // 10, key=key, sequence=sequence)
            else:
                expected = np.flatnonzero(dirty[t] | (kind == "all"))
            assert np.array_equal(taken.rows, expected)
            assert np.array_equal(taken.weight, weight[t][taken.rows])
            if end == "commit":
                total[t][taken.rows] -= drift[t][taken.rows]
            assert np.array_equal(engine.native.drift(t), total[t])
            taken_rows += len(taken.rows)
        check_histogram(engine)
    assert taken_rows > 10_000


def test_the_histogram_of_a_walk_under_way_counts_every_row() -> None:
    engine = with_drift(np.random.default_rng(0).lognormal(0, 2, 50_000), dim=32, max_staging_bytes=1 << 18)
    snapshot = engine.begin(Selection.all(), clears_dirty=True)
    rng = np.random.default_rng(1)
    for _ in range(20):
        engine.random_step(rng, 50)
        histogram = engine.native.drift_histogram(0)
        assert histogram.sum() == 50_000
    assert snapshot.status == "walking"
    snapshot.abort()
    check_histogram(engine)


def test_rows_tracked_or_renormalised_during_a_walk_are_taken_by_their_drift() -> None:
    """`track` and `renormalise` settle rows as an update does; only the second adds to the drift.

    The walk waits for a reader of the first table, so it comes to the second after them.
    """
    drift = np.zeros(1000, np.float32)
    drift[-500:] = np.arange(1, 501)
    engine = Engine(
        rows=(100_000, 1000),
        spec={"drift": True},
        seed=SEED,
        optimizer="sgd",
        dim=32,
        max_staging_bytes=1 << 20,
    )
    engine.call("set_drift", 1, drift)
    weight = engine.native.weight(1).copy()
    snapshot = engine.begin(Selection.all(), Selection.most_drifted(400), clears_dirty=False)
    engine.call("track", 1, np.arange(500, 990))
    assert engine.call("renormalise", 1, np.arange(900, 1000), 0.5, 2.0) == 100
    taken = drain(snapshot, 2)[1]
    snapshot.commit()
    expected = most_drifted(drift, 400, key=table_key(SEED, "t1"), sequence=0)
    assert np.array_equal(taken.rows, expected)
    assert np.array_equal(taken.weight, weight[expected])
    after = drift.copy()
    after[expected] = 0.0
    now = engine.native.drift(1)
    assert np.array_equal(now[:900], after[:900])
    assert (now[900:] > after[900:]).all()
    check_histogram(engine)
