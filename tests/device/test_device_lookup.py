"""Lookups on a device give the bits of `Collection.lookup`, for any number of lanes and order of work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_engine import DeviceEngine, bits
from device_memory import LANES, ON_GPU
from engine import Engine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)
DTYPES = ["float32", "float16", "bfloat16", "float64"]


def random_bags(
    rng: np.random.Generator, rows: tuple[int, ...], bags: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = rng.integers(0, longest + 1, len(rows) * bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [rng.integers(0, n, offsets[(t + 1) * bags] - offsets[t * bags]) for t, n in enumerate(rows)]
    return np.concatenate(ids).astype(np.int64), offsets


def pair(lanes: int = 8, seed: int = 0, **options: Any) -> tuple[Engine, DeviceEngine]:
    twin = Engine(**options)
    return twin, DeviceEngine(twin=twin, lanes=lanes, device_seed=seed)


@each_lanes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8, 33, 128, 200])
def test_initial_rows_are_the_same(lanes: int, dtype: str, dim: int) -> None:
    optimizer = "none" if dtype == "float64" else "partial_row_wise_adam"
    spec = {"dtype": dtype, "drift": optimizer != "none", "row_offset": 7}
    _, device = pair(
        lanes, rows=(97, 3), dim=dim, optimizer=optimizer, spec=spec, settings={"initial_state": 0.25}
    )
    device.assert_same()


@each_lanes
@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pools_as_the_host_does(lanes: int, pooling: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    for number, dim in enumerate((1, 4, 16, 31, 64, 130, 300)):
        twin, device = pair(
            lanes,
            number,
            rows=(50, 1, 700),
            dim=dim,
            pooling=pooling,
            optimizer="none",
            spec={"dtype": dtype},
        )
        ids, offsets = random_bags(rng, (50, 1, 700), 13, 3 if number % 2 else 70)
        narrow = np.int32 if number % 3 else np.int64
        expected, _ = twin.lookup(ids.astype(narrow), offsets)
        out, _ = device.lookup(ids.astype(narrow), offsets.astype(narrow))
        device.native.synchronize()
        np.testing.assert_array_equal(bits(out), bits(expected))


@each_lanes
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_scale_the_items(lanes: int, dtype: str) -> None:
    rng = np.random.default_rng(5)
    twin, device = pair(lanes, 1, rows=(40, 60), dim=20, optimizer="none", spec={"dtype": dtype})
    for longest in (1, 5, 90):
        ids, offsets = random_bags(rng, (40, 60), 9, longest)
        weights = rng.standard_normal(len(ids)).astype(np.float64 if dtype == "float64" else np.float32)
        expected, _ = twin.lookup(ids, offsets, weights)
        out, _ = device.lookup(ids, offsets, weights)
        device.native.synchronize()
        np.testing.assert_array_equal(bits(out), bits(expected))


@each_lanes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_gradient_of_weights(lanes: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    for dim in (1, 12, 33, 200):
        twin, device = pair(lanes, dim, rows=(30, 70), dim=dim, optimizer="none", spec={"dtype": dtype})
        ids, offsets = random_bags(rng, (30, 70), 15, 5)
        weights = rng.standard_normal(len(ids)).astype(np.float64 if dtype == "float64" else np.float32)
        out, batch = twin.lookup(ids, offsets, weights)
        grad = rng.standard_normal(out.shape).astype(out.dtype)
        expected = np.empty_like(weights)
        twin.call("per_sample_weight_grad", batch, grad, expected, threads=1)
        _, kept = device.lookup(ids, offsets, weights)
        got = device.weight_grad(kept, grad)
        device.native.synchronize()
        np.testing.assert_array_equal(bits(got), bits(expected))


@each_lanes
def test_long_bags_are_summed_in_the_tree(lanes: int) -> None:
    rng = np.random.default_rng(5)
    twin, device = pair(lanes, 1, rows=(400,), dim=5)
    lengths = [32, 33, 1023, 1024, 1025, 0, 32 * 32 * 32, 32 * 32 * 32 + 65]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 400, offsets[-1])
    expected, _ = twin.lookup(ids, offsets)
    out, _ = device.lookup(ids, offsets)
    device.native.synchronize()
    np.testing.assert_array_equal(bits(out), bits(expected))


@each_lanes
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_pooling_a_row_an_id(lanes: int, dtype: str) -> None:
    rng = np.random.default_rng(2)
    twin, device = pair(
        lanes, rows=(30, 20, 9), dim=12, pooling="none", optimizer="none", spec={"dtype": dtype}
    )
    offsets = np.array([0, 25, 25, 40])
    ids = np.concatenate([rng.integers(0, 30, 25), rng.integers(0, 9, 15)])
    expected = np.empty((40, 12), np.float64 if dtype == "float64" else np.float32)
    twin.native.lookup(describe(ids), describe(offsets), None, describe(expected), threads=1, keep=False)
    out, _ = device.lookup(ids, offsets)
    device.native.synchronize()
    np.testing.assert_array_equal(bits(out), bits(expected))


def test_ids_per_bag_stands_for_offsets() -> None:
    rng = np.random.default_rng(2)
    twin, device = pair(rows=(30, 20))
    ids = np.concatenate([rng.integers(0, 30, 12), rng.integers(0, 20, 12)])
    expected, _ = twin.lookup(ids, np.arange(0, 25, 3))
    out, _ = device.lookup(ids, None, batch_size=4, ids_per_bag=3)
    device.native.synchronize()
    np.testing.assert_array_equal(bits(out), bits(expected))


@each_lanes
@pytest.mark.parametrize("bad", [-1, 20, 2**31 - 1, -(2**31)])
def test_a_bad_id_makes_its_bag_nan_and_is_raised_once(lanes: int, bad: int) -> None:
    _, device = pair(lanes, rows=(30, 20))
    ids = np.zeros(12, np.int64)
    ids[10] = bad
    ids[8] = -5
    out, _ = device.lookup(ids, np.arange(0, 13, 2))
    message = "ids: expected 0 <= id < 20 for table 't1', got id -5 at position 8"
    with pytest.raises(IndexError, match=message):
        device.native.synchronize()
    wrong = np.zeros((3, 16), bool)
    wrong[1:, 8:] = True
    np.testing.assert_array_equal(np.isnan(out), wrong)
    device.native.synchronize()
    ids[:] = 1
    device.lookup(ids, np.arange(0, 13, 2))
    device.native.synchronize()


@pytest.mark.parametrize(
    ("bad", "said"),
    [(2**40, f"at least {2**32 - 1}"), (-(2**62), f"at most {-(2**32)}"), (2**32 - 2, f"{2**32 - 2}")],
)
def test_ids_beyond_what_the_device_notes_are_named_as_such(bad: int, said: str) -> None:
    _, device = pair(8, rows=(30, 20))
    device.lookup(np.array([1, bad]), np.array([0, 1, 2]))
    with pytest.raises(IndexError, match=f"got id {said} at position 1"):
        device.native.synchronize()


@each_lanes
@pytest.mark.parametrize(
    ("offsets", "where", "got"),
    [
        ([1, 2, 3, 3, 4], 0, "1"),
        ([0, 2, 1, 3, 4], 2, "1"),
        ([0, 2, 3, 3, 5], 4, "5"),
        ([0, 2, 3, 3, 3], 4, "3"),
        ([0, 2, 99, 3, 4], 2, "99"),
        ([0, -2, 3, 3, 4], 1, "-2"),
        ([0, 2**40, 3, 3, 4], 1, f"at least {2**32 - 1}"),
    ],
)
def test_bad_offsets_are_raised(lanes: int, offsets: list[int], where: int, got: str) -> None:
    _, device = pair(lanes, rows=(30, 20))
    device.lookup(np.array([0, 1, 2, 3]), np.array(offsets))
    with pytest.raises(ValueError, match=rf"got offsets\[{where}\] = {got}\b"):
        device.native.synchronize()
    device.native.synchronize()


@each_lanes
def test_bad_offsets_without_pooling_are_raised(lanes: int) -> None:
    _, device = pair(lanes, rows=(30, 20), pooling="none")
    device.lookup(np.array([0, 1, 2, 3]), np.array([0, 7, 4]))
    with pytest.raises(ValueError, match=r"got offsets\[1\] = 7"):
        device.native.synchronize()


@given(
    data=st.data(),
    lanes=st.sampled_from(LANES),
    dim=st.integers(1, 140),
    pooling=st.sampled_from(["sum", "mean", "max"]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_any_shape(data: st.DataObject, lanes: int, dim: int, pooling: str, dtype: str, seed: int) -> None:
    rows = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    rng = np.random.default_rng(seed)
    twin, device = pair(
        lanes, seed, rows=rows, dim=dim, pooling=pooling, optimizer="none", spec={"dtype": dtype}
    )
    ids, offsets = random_bags(rng, rows, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 80)))
    expected, _ = twin.lookup(ids, offsets)
    out, _ = device.lookup(ids, offsets)
    device.native.synchronize()
    np.testing.assert_array_equal(bits(out), bits(expected))


def test_an_error_is_told_of_one_lookup() -> None:
    """Two lookups are bad at the same position before anyone has asked: what is told is the first one's."""
    told = 0
    for seed in range(20):
        _, device = pair(1, seed, rows=(20, 30), dim=2)
        device.lookup(np.array([0, 25, 0]), np.array([0, 2, 3]))
        try:
            device.lookup(np.array([0, -3, 0]), np.array([0, 1, 3]))
        except IndexError:
            continue  # the first had been done already
        told += 1
        with pytest.raises(IndexError, match=r"id < 20 for table 't0', got id 25 at position 1"):
            device.native.synchronize()
    assert told > 0 or ON_GPU
