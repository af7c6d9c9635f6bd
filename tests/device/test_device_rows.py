"""Rows and trackers of tables on a device, read and written outside of updates: the same as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_memory import LANES
from device_saves import Pair

from cpr_native._native import CprError, DeviceCollection, Selection, SnapshotInProgress
from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)
ROWS = (300, 41)


def random_words(rng: np.random.Generator, rows: int) -> np.ndarray:
    counts = rng.integers(0, 2**27, rows) >> rng.integers(0, 27, rows)
    flags = rng.integers(0, 2, rows) * 2**30 + rng.integers(0, 2, rows) * 2**29
    return (counts + flags).astype(np.uint32)


def marked(lanes: int, seed: int = 0, **options: Any) -> Pair:
    """Tables with random trackers."""
    pair = Pair(ROWS, lanes, seed, spec={"drift": True, **options.pop("spec", {})}, **options)
    rng = np.random.default_rng(seed)
    for table, n in enumerate(ROWS):
        drift = np.where(rng.random(n) < 0.5, 0, rng.standard_exponential(n)).astype(np.float32)
        pair.call("set_drift", table, drift)
        pair.call("set_trackers", table, random_words(rng, n))
    return pair


def called(pair: Pair, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of the device's collection with arrays for memory."""
    given = [describe(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return getattr(pair.device.native, name)(*given, **options)


@each_lanes
@pytest.mark.parametrize("seed", range(3))
def test_trackers_are_set_and_read(lanes: int, seed: int) -> None:
    pair = marked(lanes, seed)
    pair.assert_totals()
    rng = np.random.default_rng(seed + 10)
    for table, n in enumerate(ROWS):
        pair.call("set_trackers", table, random_words(rng, n))  # lists change hands
    pair.assert_totals()


@each_lanes
def test_trackers_of_ranges_are_cleared(lanes: int) -> None:
    pair = marked(lanes, spec={"row_offset": 1000})
    pair.call("clear_trackers", 0, 1017, 1200, dirty=False)
    pair.call("clear_trackers", 0, 1100, 1299, dirty=True)
    pair.call("clear_trackers", 1, 1005, 1005, dirty=True)
    pair.assert_totals()


@each_lanes
@pytest.mark.parametrize("optimizer", ["sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"])
@pytest.mark.parametrize(("dtype", "dim"), [("float32", 8), ("float16", 5), ("bfloat16", 16)])
def test_rows_are_written_and_copied(lanes: int, optimizer: str, dtype: str, dim: int) -> None:
    pair = marked(lanes, optimizer=optimizer, dim=dim, spec={"dtype": dtype, "row_offset": 7})
    rng = np.random.default_rng(1)
    for table, n in enumerate(ROWS):
        weight = pair.twin.native.weight(table)
        state = pair.twin.native.state(table)
        for name, rows in (
            ("load_rows", np.sort(rng.permutation(n)[: n // 2])),
            ("load_rows", rng.integers(0, n, n)),  # some twice: the last one stays
            ("put_rows", rng.permutation(n)[: n // 3]),
        ):
            items = rng.integers(0, n, len(rows))
            states = None if state is None else np.abs(rng.standard_normal((len(rows), *state.shape[1:])))
            given = None if states is None else states.astype(np.float32)
            pair.call(
                name, table, rows + 7, np.ascontiguousarray(weight[items]) + weight.dtype.type(1), given
            )
            pair.assert_totals()
        rows = rng.integers(0, n, 50) + 7
        copies = []
        for native in (pair.twin.native, pair.device.native):
            to = np.zeros((50, dim), weight.dtype)
            values = None if state is None else np.zeros((50, *state.shape[1:]), np.float32)
            native.copy_rows(
                table, describe(rows), describe(to), None if values is None else describe(values)
            )
            copies.append((to, values))
        np.testing.assert_array_equal(copies[0][0], copies[1][0])
        if state is not None:
            np.testing.assert_array_equal(copies[0][1], copies[1][1])


@each_lanes
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_reset_and_discarded(lanes: int, dtype: str) -> None:
    pair = marked(lanes, spec={"dtype": dtype, "row_offset": 3}, optimizer="partial_row_wise_adam", dim=37)
    pair.call("discard_rows", 0, 10, 200)
    pair.assert_totals()
    pair.call("reset_rows", 0, 50, 303)
    pair.call("reset_rows", 1, 3, 4)
    pair.assert_totals()


@each_lanes
def test_rows_are_marked(lanes: int) -> None:
    pair = marked(lanes)
    pair.call("mark_dirty", 0, np.array([5, 299, 5, 0]))
    pair.assert_totals()
    pair.call("mark_dirty", 1)
    pair.assert_totals()


def test_more_rows_than_cross_at_once() -> None:
    pair = Pair((30_000,), dim=4, max_staging_bytes=1 << 16, spec={"drift": True})
    rng = np.random.default_rng(5)
    rows = rng.permutation(30_000)
    pair.call(
        "load_rows", 0, rows, rng.random((30_000, 4), np.float32), rng.random(30_000, np.float32), dirty=True
    )
    pair.call("set_trackers", 0, random_words(rng, 30_000))
    pair.assert_totals()


def test_bad_rows_change_nothing() -> None:
    pair = marked(8, spec={"row_offset": 10})
    zeros = np.zeros((2, 8), np.float32)
    state = np.zeros(2, np.float32)
    for name in ("load_rows", "put_rows", "copy_rows"):
        with pytest.raises(
            IndexError, match=r"rows: expected 10 <= row < 310 for table 't0', got 310 at position 1"
        ):
            called(pair, name, 0, np.array([10, 310]), zeros, state)
    with pytest.raises(IndexError, match="position 0"):
        called(pair, "mark_dirty", 0, np.array([9]))
    for name in ("reset_rows", "discard_rows"):
        with pytest.raises(IndexError, match="range within"):
            called(pair, name, 0, 9, 20)
    with pytest.raises(ValueError, match="shape"):
        called(pair, "set_trackers", 0, np.zeros(3, np.uint32))
    with pytest.raises(ValueError, match="at least 0"):
        called(pair, "set_drift", 0, np.full(300, -1, np.float32))
    pair.assert_totals()


def test_no_rows_are_written_while_a_snapshot_is_in_flight() -> None:
    pair = marked(8)
    snapshot = pair.device.native.begin([Selection.all(), Selection.none()], clears_dirty=True)
    for name, arguments in (
        ("reset_rows", (0, 0, 1)),
        ("clear_trackers", (0, 0, 1)),
        ("set_trackers", (0, np.zeros(300, np.uint32))),
    ):
        options = {"dirty": True} if name == "clear_trackers" else {}
        with pytest.raises(SnapshotInProgress, match=name):
            called(pair, name, *arguments, **options)
    snapshot.abort()
    pair.assert_totals()


def test_memory_is_needed_first() -> None:
    pair = Pair((10,))
    bare = DeviceCollection(
        pair.device.table_specs(), [0], device=pair.device.device, optimizer="sgd", learning_rate=0.1
    )
    with pytest.raises(CprError, match="bind"):
        bare.trackers(0)
    with pytest.raises(ValueError, match="max_staging_bytes: expected at least"):
        bare.snapshot_bytes(100)
