"""Rows of tables on a device that are tracked or scaled outside of updates, beside those of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_memory import LANES, Scratch, reachable
from device_saves import Pair
from numpy.typing import NDArray

from cpr_native._native import Selection
from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)
ROWS = (300, 41)


def track(pair: Pair, table: int, ids: NDArray[Any]) -> None:
    pair.twin.call("track", table, ids)
    native, on_device = pair.device.native, reachable(ids)
    memory = Scratch(native.ids_bytes(len(ids)))
    native.track(table, describe(on_device), memory=memory.ref)
    native.synchronize()


def renormalised(pair: Pair, table: int, ids: NDArray[Any], max_norm: float, norm_type: float) -> int:
    """Scale rows of the device's table; return how many were."""
    native, on_device, count = pair.device.native, reachable(ids), reachable(np.full(1, -1, np.int64))
    memory = Scratch(native.ids_bytes(len(ids)))
    native.renormalise(
        table, describe(on_device), max_norm, norm_type, count=describe(count), memory=memory.ref
    )
    native.synchronize()
    return int(count[0])


def renormalise(pair: Pair, table: int, ids: NDArray[Any], max_norm: float, norm_type: float) -> int:
    changed = renormalised(pair, table, ids, max_norm, norm_type)
    assert changed == pair.twin.call("renormalise", table, ids, max_norm, norm_type)
    return changed


def numbers(weight: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows as float64; bfloat16 comes as bit patterns."""
    if weight.dtype == np.uint16:
        weight = (weight.astype(np.uint32) << 16).view(np.float32)
    return weight.astype(np.float64)


@each_lanes
@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize("spec", [{}, {"ssu_period": 1, "ssu_fraction": 0.02}, {"ssu": False, "drift": True}])
def test_ids_are_counted_and_sampled(lanes: int, kind: Any, spec: dict[str, Any]) -> None:
    pair = Pair(ROWS, lanes, optimizer="none" if "drift" not in spec else "sgd", spec=spec)
    rng = np.random.default_rng(1)
    for number in range(5):
        for table, rows in enumerate(ROWS):
            track(pair, table, (rows * rng.random(200 * number) ** 4).astype(kind))
    pair.assert_totals()
    assert pair.device.native.num_dirty(0) == 0
    assert pair.device.native.step() == 0


@each_lanes
def test_tracked_rows_keep_their_dirty_bits_and_drift(lanes: int) -> None:
    pair = Pair(ROWS, lanes, spec={"drift": True})
    rng = np.random.default_rng(1)
    for _ in range(3):
        pair.random_step(rng, 50)
        track(pair, 0, rng.integers(0, 300, 40))
    pair.assert_totals()


@each_lanes
@pytest.mark.parametrize("norm_type", [1.0, 2.0, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rows_above_the_norm_are_scaled(lanes: int, norm_type: float, dtype: str) -> None:
    wide = dtype == "float64"
    for dim in (1, 5, 32, 70):
        spec = {"dtype": dtype, "drift": not wide, "row_offset": 9}
        pair = Pair(ROWS, lanes, dim, dim=dim, optimizer="none" if wide else "sgd", spec=spec)
        if not wide:
            pair.random_step(np.random.default_rng(2), 30)
        for table, n in enumerate(ROWS):
            norms = np.linalg.norm(numbers(pair.twin.native.weight(table)), norm_type, axis=1)
            ids = np.random.default_rng(dim).integers(0, n, n)
            changed = renormalise(pair, table, ids, float(np.median(norms)), norm_type)
            assert 0 < changed < n
            assert renormalise(pair, table, ids[:0], 0.0, norm_type) == 0
        renormalise(pair, 1, np.arange(41), 0.0, norm_type)
        pair.assert_totals()


@each_lanes
def test_infinities_and_nans_are_as_on_the_cpu(lanes: int) -> None:
    pair = Pair((6,), lanes, dim=3, optimizer="sgd", spec={"drift": True})
    weight = np.array(
        [[np.nan, 1, 2], [np.inf, 1, 2], [-np.inf, np.nan, 0], [1, 2, -9], [-0.0, 0, 0], [3, 3, 3]],
        np.float32,
    )
    for norm_type in (1.0, 2.0, np.inf):
        pair.call("load_rows", 0, np.arange(6), weight, None)
        renormalise(pair, 0, np.arange(6), 2.0, norm_type)
        pair.assert_totals()


@each_lanes
def test_scaled_rows_are_in_the_snapshot_as_they_were(lanes: int) -> None:
    pair = Pair(ROWS, lanes, optimizer="sgd", dim=4, max_staging_bytes=1 << 16)
    rng = np.random.default_rng(3)
    pair.random_step(rng, 100)
    before = pair.twin.native.weight(0).copy()
    snapshots = pair.begin([Selection.all(), Selection.none()], clears_dirty=True, walk=False)
    renormalise(pair, 0, np.arange(0, 300, 2), 0.3, 2.0)
    track(pair, 0, np.arange(0, 300, 3))
    for snapshot in snapshots:
        taken = np.zeros_like(before)
        snapshot.walk()
        for chunk in snapshot:
            taken[chunk.rows] = chunk.weight
        np.testing.assert_array_equal(taken, before)
        snapshot.commit()
    pair.assert_totals()


def test_a_bad_id_counts_and_writes_nothing() -> None:
    pair = Pair(ROWS)
    ids = np.array([3, 4, 300, -1])
    with pytest.raises(IndexError, match="table 't0', got id 300 at position 2"):
        track(Pair(ROWS), 0, ids)
    with pytest.raises(IndexError, match="table 't0', got id 300 at position 2"):
        renormalised(pair, 0, ids, 0.1, 2.0)
    pair.assert_totals()


def test_arguments_are_checked() -> None:
    pair = Pair(ROWS)
    ids = np.array([3, 4])
    with pytest.raises(ValueError, match="norm_type: expected 1, 2 or inf"):
        renormalised(pair, 0, ids, 0.1, 3.0)
    with pytest.raises(ValueError, match="max_norm: expected a finite value"):
        renormalised(pair, 0, ids, -0.1, 2.0)
    with pytest.raises(IndexError, match="table: expected"):
        renormalised(pair, 2, ids, 0.1, 2.0)
    with pytest.raises(TypeError, match="ids: expected dtype int32 or int64"):
        renormalised(pair, 0, ids.astype(np.float32), 0.1, 2.0)
