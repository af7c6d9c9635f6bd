"""Gradients for torch's own optimizers, of tables on a device: the bits of `Collection.gradient`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_engine import DeviceEngine, bits, skewed_bags
from device_memory import LANES
from engine import Engine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpr_native._native import DeviceBatch
from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)


def pair(lanes: int = 8, seed: int = 0, **options: Any) -> tuple[Engine, DeviceEngine]:
    twin = Engine(optimizer="none", **options)
    return twin, DeviceEngine(twin=twin, lanes=lanes, device_seed=seed)


def assert_gradients(
    twin: Engine, device: DeviceEngine, batches: tuple[Any, DeviceBatch], grad: NDArray[Any]
) -> None:
    """The gradients of all tables, one after the other."""
    for table in range(len(twin.rows)):
        rows, values = twin.native.gradient(batches[0], describe(grad), table=table, threads=1)
        found, sums = device.gradient(batches[1], grad, table)
        np.testing.assert_array_equal(found, rows)
        np.testing.assert_array_equal(bits(sums), bits(values))


@each_lanes
@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_pooling_and_dtype(lanes: int, pooling: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    rows = (300, 1, 40)
    outer = np.float64 if dtype == "float64" else np.float32
    for number, dim in enumerate((1, 8, 30, 128, 260)):
        spec = {"dtype": dtype, "scale_grad_by_freq": number % 2 == 1, "row_offset": 5}
        twin, device = pair(lanes, number, rows=rows, dim=dim, pooling=pooling, spec=spec)
        for repeated in (False, True):
            ids, offsets = skewed_bags(rng, rows, 12, 60)
            out, batch = twin.lookup(ids, offsets)
            _, kept = device.lookup(ids, offsets)
            for _ in range(1 + repeated):  # a second backward through the same forward
                grad = rng.standard_normal(out.shape).astype(outer)
                assert_gradients(twin, device, (batch, kept), grad)
        device.assert_same()
        assert device.native.step() == twin.native.step == 2


@each_lanes
@pytest.mark.parametrize("count", [32, 33, 1024, 1025, 5000, 32 * 32 * 32 + 33])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hot_rows_are_summed_in_the_tree(lanes: int, count: int, dtype: str) -> None:
    rng = np.random.default_rng(count)
    twin, device = pair(lanes, rows=(9, 50), dim=6, spec={"ssu_period": 16, "dtype": dtype})
    bags = count + 60
    ids = np.concatenate([np.full(count, 4), rng.integers(0, 9, 60), rng.integers(0, 2, bags)])
    rng.shuffle(ids[:bags])
    out, batch = twin.lookup(ids, np.arange(2 * bags + 1))
    _, kept = device.lookup(ids, np.arange(2 * bags + 1))
    assert_gradients(twin, device, (batch, kept), rng.standard_normal(out.shape).astype(out.dtype))
    device.assert_same()


@each_lanes
def test_weights_scale_gradients(lanes: int) -> None:
    rng = np.random.default_rng(4)
    for dtype in ("float32", "float64"):
        twin, device = pair(lanes, rows=(30, 70), dim=12, spec={"dtype": dtype})
        for longest in (1, 4, 50):
            ids, offsets = skewed_bags(rng, (30, 70), 15, longest)
            weights = rng.standard_normal(len(ids)).astype(dtype)
            out, batch = twin.lookup(ids, offsets, weights)
            _, kept = device.lookup(ids, offsets, weights)
            assert_gradients(twin, device, (batch, kept), rng.standard_normal(out.shape).astype(out.dtype))
        device.assert_same()


@each_lanes
def test_without_pooling_and_with_shared_tables(lanes: int) -> None:
    rng = np.random.default_rng(4)
    twin, device = pair(lanes, rows=(30, 70, 4), dim=12, pooling="none")
    ids = np.concatenate([rng.integers(0, 30, 40), rng.integers(0, 4, 90)])
    offsets = np.array([0, 40, 40, 130])
    grad = rng.standard_normal((130, 12)).astype(np.float32)
    batch = twin.native.lookup(describe(ids), describe(offsets), None, None, threads=1, keep=True)
    assert batch is not None
    _, kept = device.lookup(ids, offsets)
    assert_gradients(twin, device, (batch, kept), grad)
    device.assert_same()


def test_no_ids_have_no_gradient() -> None:
    twin, device = pair(rows=(30, 70))
    offsets = np.zeros(9, np.int64)
    out, batch = twin.lookup(np.zeros(0, np.int64), offsets)
    _, kept = device.lookup(np.zeros(0, np.int64), offsets)
    assert_gradients(twin, device, (batch, kept), np.zeros(out.shape, np.float32))
    assert device.native.step() == twin.native.step == 1


def test_a_bad_id_leaves_no_rows() -> None:
    _, device = pair(rows=(30,))
    ids = np.array([3, 30, 4])
    _, kept = device.lookup(ids, np.arange(4))
    with pytest.raises(IndexError, match="got id 30 at position 1"):
        device.gradient(kept, np.ones((3, 8), np.float32), 0)
    assert device.native.step() == 0
    assert not device.native.trackers(0).any()


def test_arguments_are_checked() -> None:
    _, device = pair(rows=(30,))
    _, kept = device.lookup(np.array([3, 4]), np.arange(3))
    with pytest.raises(ValueError, match=r"grad: expected shape \[2, 8\], got \[2, 7\]"):
        device.gradient(kept, np.ones((2, 7), np.float32), 0)
    with pytest.raises(IndexError, match="table: expected 0 <= table < 1, got 1"):
        device.gradient(kept, np.ones((2, 8), np.float32), 1)
    fused = DeviceEngine(twin=Engine(rows=(30,)))
    _, kept = fused.lookup(np.array([3, 4]), np.arange(3))
    with pytest.raises(ValueError, match="expected optimizer none"):
        fused.gradient(kept, np.ones((2, 8), np.float32), 0)


@given(
    data=st.data(),
    lanes=st.sampled_from(LANES),
    dim=st.integers(1, 140),
    pooling=st.sampled_from(["sum", "mean", "max"]),
    dtype=st.sampled_from(["float32", "float16", "float64"]),
    seed=st.integers(0, 1000),
)
def test_any_shape(data: st.DataObject, lanes: int, dim: int, pooling: str, dtype: str, seed: int) -> None:
    rows = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    rng = np.random.default_rng(seed)
    twin, device = pair(lanes, seed, rows=rows, dim=dim, pooling=pooling, spec={"dtype": dtype})
    for _ in range(data.draw(st.integers(1, 2))):
        ids, offsets = skewed_bags(rng, rows, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 80)))
        out, batch = twin.lookup(ids, offsets)
        _, kept = device.lookup(ids, offsets)
        assert_gradients(twin, device, (batch, kept), rng.standard_normal(out.shape).astype(out.dtype))
    device.assert_same()
