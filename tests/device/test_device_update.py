"""Updates on a device leave the bits of `Collection.update`: rows, state, words, lists and drifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_engine import DeviceEngine, skewed_bags
from device_memory import LANES
from engine import Engine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpr_native._native import CprError
from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)
OPTIMIZERS = ["sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"]


def pair(lanes: int = 8, seed: int = 0, **options: Any) -> tuple[Engine, DeviceEngine]:
    twin = Engine(**options)
    return twin, DeviceEngine(twin=twin, lanes=lanes, device_seed=seed)


def step(
    twin: Engine,
    device: DeviceEngine,
    ids: NDArray[Any],
    offsets: NDArray[Any],
    grad: NDArray[np.float32] | None = None,
    weights: NDArray[np.float32] | None = None,
    **options: Any,
) -> None:
    """One lookup and update of both."""
    out, batch = twin.lookup(ids, offsets, weights)
    if grad is None:
        grad = np.random.default_rng(len(ids)).standard_normal(out.shape).astype(np.float32)
    twin.native.update(batch, describe(grad), threads=2, **options)
    _, kept = device.lookup(ids, offsets, weights)
    device.update(kept, grad, **options)


@each_lanes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
def test_every_optimizer_and_pooling(lanes: int, optimizer: str, pooling: str) -> None:
    rng = np.random.default_rng(1)
    rows = (300, 1, 40)
    for number, dim in enumerate((1, 8, 30, 128, 260)):
        settings = {
            "eps": 0.0 if number == 2 else 1e-4,
            "weight_decay": 0.01 * (number % 2),
            "initial_state": 0.5,
        }
        twin, device = pair(
            lanes,
            number,
            rows=rows,
            dim=dim,
            optimizer=optimizer,
            pooling=pooling,
            spec={"drift": number != 1, "scale_grad_by_freq": number == 3, "row_offset": 5},
            settings=settings,
        )
        for _ in range(3):
            step(twin, device, *skewed_bags(rng, rows, 12, 9), grad_scale=(1.0, 0.7)[number % 2])
        device.assert_same()
        assert device.native.step() == 3


@each_lanes
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_by_the_same_bits(lanes: int, optimizer: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    for dim in (3, 16, 150):
        twin, device = pair(
            lanes, dim, rows=(60, 5), dim=dim, optimizer=optimizer, spec={"dtype": dtype, "row_offset": 3}
        )
        for _ in range(3):
            step(twin, device, *skewed_bags(rng, (60, 5), 20, 6))
        device.assert_same()


@each_lanes
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [31, 32, 33, 64, 1023, 1024, 1025, 2048, 5000, 32 * 32 * 32 + 33])
def test_hot_rows_are_summed_in_the_tree(lanes: int, seed: int, count: int) -> None:
    """A row of `count` ids among others; chunks of it are summed by many groups, in any order."""
    rng = np.random.default_rng(seed)
    twin, device = pair(
        lanes, seed, rows=(9, 50), dim=6, optimizer="row_wise_adagrad", spec={"ssu_period": 16}
    )
    ids = np.concatenate([np.full(count, 4), rng.integers(0, 9, 60), rng.integers(0, 2, 300)])
    rng.shuffle(ids[: count + 60])
    bags = count + 60
    offsets = np.concatenate([np.arange(bags + 1), bags + np.linspace(0, 300, bags + 1)[1:].astype(np.int64)])
    for _ in range(2):
        step(twin, device, ids, offsets)
    device.assert_same()


@each_lanes
@pytest.mark.parametrize("seed", range(4))
def test_the_list_agrees_when_slots_are_few(lanes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = (2000, 50)
    twin, device = pair(lanes, seed, rows=rows, dim=4, spec={"ssu_fraction": 0.01, "ssu_period": 1})
    for _ in range(5):
        step(twin, device, *skewed_bags(rng, rows, 200, 3))
        device.assert_same()
    assert all((memory["claims"] == 0).all() for memory in device.memory)


@each_lanes
def test_weights_scale_gradients(lanes: int) -> None:
    rng = np.random.default_rng(4)
    twin, device = pair(lanes, rows=(30, 70), dim=12)
    for longest in (1, 4, 50):
        ids, offsets = skewed_bags(rng, (30, 70), 15, longest)
        step(twin, device, ids, offsets, weights=rng.standard_normal(len(ids)).astype(np.float32))
    device.assert_same()


@each_lanes
def test_without_pooling(lanes: int) -> None:
    rng = np.random.default_rng(4)
    twin, device = pair(lanes, rows=(30, 70, 4), dim=12, pooling="none")
    for _ in range(3):
        ids = np.concatenate([rng.integers(0, 30, 40), rng.integers(0, 4, 90)])
        offsets = np.array([0, 40, 40, 130])
        grad = rng.standard_normal((130, 12)).astype(np.float32)
        batch = twin.native.lookup(describe(ids), describe(offsets), None, None, threads=1, keep=True)
        assert batch is not None
        assert twin.native.update(batch, describe(grad), threads=1)
        _, kept = device.lookup(ids, offsets)
        device.update(kept, grad)
    device.assert_same()


@each_lanes
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_skips_the_step(lanes: int, bad: float) -> None:
    rng = np.random.default_rng(4)
    rows = (30, 70)
    twin, device = pair(lanes, rows=rows, dim=12, optimizer="adam")
    for number in range(5):
        ids, offsets = skewed_bags(rng, rows, 15, 9)
        grad = rng.standard_normal((15, 24)).astype(np.float32)
        if number in (1, 2):
            grad[number * 5, 3] = bad
        step(twin, device, ids, offsets, grad)
    device.assert_same()
    assert (device.native.step(), device.native.skipped_steps()) == (3, 2)
    assert twin.native.skipped_steps == 2


@each_lanes
def test_frozen_tables_stay(lanes: int) -> None:
    rng = np.random.default_rng(4)
    rows = (30, 70, 8)
    twin, device = pair(lanes, rows=rows, dim=12)
    for frozen in ([1], [], [0, 2], [2]):
        step(twin, device, *skewed_bags(rng, rows, 40, 9), frozen=frozen)
    device.assert_same()


@each_lanes
@pytest.mark.parametrize(
    "spec",
    [
        {"mfu": False, "dirty": False, "ssu": False},
        {"mfu": False, "drift": True},
        {"ssu": False},
        {"dirty": False, "ssu_period": 4},
    ],
    ids=str,
)
def test_any_set_of_trackers(lanes: int, spec: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    twin, device = pair(lanes, rows=(30, 70), dim=5, spec=spec)
    for _ in range(3):
        step(twin, device, *skewed_bags(rng, (30, 70), 40, 9))
    device.assert_same()


@each_lanes
def test_after_a_bad_id_updates_do_nothing_until_it_is_raised(lanes: int) -> None:
    rng = np.random.default_rng(4)
    rows = (30, 70)
    twin, device = pair(lanes, rows=rows, dim=5)
    step(twin, device, *skewed_bags(rng, rows, 10, 9))
    grad = np.ones((10, 10), np.float32)
    good, bad = np.zeros(20, np.int64), np.zeros(20, np.int64)
    bad[13] = 70
    _, before = device.lookup(good, np.arange(21))
    _, broken = device.lookup(bad, np.arange(21))
    refused = 0
    for batch in (before, broken):
        try:
            device.update(batch, grad)
        except IndexError:
            refused += 1
    if not refused:
        with pytest.raises(IndexError, match="got id 70 at position 13"):
            device.native.synchronize()
    assert device.native.step() == 1
    device.assert_same()
    step(twin, device, *skewed_bags(rng, rows, 10, 9))
    device.assert_same()


def test_a_batch_is_updated_once() -> None:
    _, device = pair(rows=(30,))
    _, batch = device.lookup(np.zeros(3, np.int64), np.arange(4))
    device.update(batch, np.zeros((3, 8), np.float32))
    with pytest.raises(CprError, match="consumed before"):
        device.update(batch, np.zeros((3, 8), np.float32))


def test_settings_change_between_updates() -> None:
    rng = np.random.default_rng(4)
    rows = (30, 70)
    twin, device = pair(rows=rows, dim=5, optimizer="adam")
    for rate in (0.1, 0.02, 0.5):
        twin.native.learning_rate = rate
        twin.native.beta1 = 1 - rate
        device.native.set_optimizer(learning_rate=rate, beta1=1 - rate)
        step(twin, device, *skewed_bags(rng, rows, 10, 9))
    device.assert_same()


def test_no_ids_are_a_step() -> None:
    twin, device = pair(rows=(30, 70))
    step(twin, device, np.zeros(0, np.int64), np.zeros(9, np.int64))
    device.assert_same()
    assert device.native.step() == twin.native.step == 1


@given(
    data=st.data(),
    lanes=st.sampled_from(LANES),
    dim=st.integers(1, 140),
    pooling=st.sampled_from(["sum", "mean", "max"]),
    optimizer=st.sampled_from(OPTIMIZERS),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    drift=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    data: st.DataObject,
    lanes: int,
    dim: int,
    pooling: str,
    optimizer: str,
    dtype: str,
    drift: bool,
    seed: int,
) -> None:
    rows = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    rng = np.random.default_rng(seed)
    twin, device = pair(
        lanes,
        seed,
        rows=rows,
        dim=dim,
        pooling=pooling,
        optimizer=optimizer,
        spec={"dtype": dtype, "drift": drift},
    )
    for _ in range(data.draw(st.integers(1, 3))):
        ids, offsets = skewed_bags(rng, rows, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 80)))
        step(twin, device, ids, offsets)
    device.assert_same()
