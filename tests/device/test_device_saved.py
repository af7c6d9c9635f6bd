"""The copy of rows as last saved, of tables on a device: as `Collection` keeps it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import LANES
from device_pair import EnginePair
from engine import drain

from cpr_native._native import Selection, SnapshotInProgress
from cpr_native._tensor import describe

METRICS = ("l2", "l1", "tv")


def assert_changes_same(pair: EnginePair, table: int) -> None:
    for metric in METRICS:
        found = pair.device.changes(table, metric, threads=2)  # type: ignore[arg-type]
        expected = pair.cpu.changes(table, metric, threads=2)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32), err_msg=metric)


def saved(pair: EnginePair, selections: list[Selection], *, clears: bool, end: str, steps: int = 0) -> None:
    """A save of both engines, read whole, with steps meanwhile."""
    rng = np.random.default_rng(steps)
    snapshots = [engine.begin(selections, clears_dirty=clears) for engine in (pair.cpu, pair.device)]
    for _ in range(steps):
        pair.step(rng)
    for snapshot in snapshots:
        drain(snapshot, 2)
    for snapshot in snapshots:
        getattr(snapshot, end)()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_distances_are_those_of_the_cpu_through_saves(dtype: str, lanes: int) -> None:
    pair = EnginePair(lanes=lanes, spec={"dtype": dtype, "row_offset": 70}, max_staging_bytes=1 << 17)
    rng = np.random.default_rng(1)
    for engine in (pair.cpu, pair.device):
        engine.keep_saved(0, True)
    assert not pair.device.changes(0).any()
    for _ in range(3):
        pair.step(rng)
    assert pair.device.changes(0).any()
    assert_changes_same(pair, 0)
    saved(pair, [Selection.most_used(40), Selection.none()], clears=False, end="commit", steps=2)
    assert_changes_same(pair, 0)
    saved(pair, [Selection.dirty(), Selection.dirty()], clears=True, end="commit")
    assert not pair.device.changes(0).any()
    pair.step(rng)
    saved(pair, [Selection.all(), Selection.all()], clears=True, end="abort", steps=1)
    assert_changes_same(pair, 0)
    assert (pair.device.changes(0) == np.finfo(np.float32).max).all()
    pair.assert_same()
    for engine in (pair.cpu, pair.device):
        engine.refresh_saved(0, 80, 200)
        engine.refresh_saved(1, 70, 110)  # not kept
    assert_changes_same(pair, 0)
    assert not pair.device.changes(0)[10:130].any()


def test_rows_that_an_aborted_snapshot_took_without_handing_them_out_stay_saved() -> None:
    pair = EnginePair(rows=(5000, 40), max_staging_bytes=1 << 16)
    pair.device.keep_saved(0, True)
    snapshot = pair.device.begin([Selection.all()] * 2, clears_dirty=True)
    chunk = snapshot.next_chunk()
    assert chunk is not None
    chunk.close()
    snapshot.abort()
    never = pair.device.changes(0) == np.finfo(np.float32).max
    assert never.any()
    assert not never.all()
    assert not pair.device.changes(0)[~never].any()


@pytest.mark.parametrize("dim", [3, 64, 5000])
def test_rows_of_any_length(dim: int) -> None:
    """5000: longer than what one task sums; the table is compared in more than one block."""
    rows = 2000 if dim == 5000 else 300
    pair = EnginePair(rows=(rows, 9), dim=dim, optimizer="sgd", max_staging_bytes=1 << 22)
    for engine in (pair.cpu, pair.device):
        engine.keep_saved(0, True)
    pair.step(np.random.default_rng(2), bags=8)
    assert_changes_same(pair, 0)


def test_errors_and_memory_are_those_of_the_cpu() -> None:
    pair = EnginePair()
    for engine in (pair.cpu, pair.device):
        with pytest.raises(ValueError, match="table 't0' keeps no copy of its rows; call keep_saved"):
            engine.changes(0)
        engine.keep_saved(0, True)
        with pytest.raises(ValueError, match="metric: expected l2, l1 or tv, got 'l3'"):
            engine.changes(0, "l3")  # type: ignore[arg-type]
        with pytest.raises(IndexError, match="expected a range within"):
            engine.refresh_saved(0, 0, 301)
        with pytest.raises(IndexError, match="table"):
            engine.keep_saved(2, True)
        with engine.begin([Selection.all()] * 2, clears_dirty=True):
            with pytest.raises(SnapshotInProgress):
                engine.keep_saved(0, False)
            with pytest.raises(SnapshotInProgress):
                engine.refresh_saved(0, 0, 1)
            with pytest.raises(SnapshotInProgress):
                engine.changes(0)
        assert engine.memory()["saved"] == 300 * 8 * 4
        engine.keep_saved(0, False)
        assert engine.memory()["saved"] == 0


def test_restored_rows_are_far_until_the_copy_is_refreshed() -> None:
    pair = EnginePair(optimizer="sgd")
    rows = np.arange(10, dtype=np.int64)
    weight = np.ones((10, 8), np.float32)
    for engine in (pair.cpu, pair.device):
        engine.keep_saved(0, True)
        engine.load_rows(0, describe(rows), describe(weight), None)
    assert_changes_same(pair, 0)
    assert (pair.device.changes(0)[:10] > 0).all()
    for engine in (pair.cpu, pair.device):
        engine.refresh_saved(0, 0, 10)
    assert_changes_same(pair, 0)
    assert not pair.device.changes(0).any()
