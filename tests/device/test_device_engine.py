"""`DeviceEngine` beside `Collection`: the same interface, the same bits, the same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from device_memory import LANES
from device_pair import EnginePair
from engine import drain

from cpr_native._native import Collection, Selection, SnapshotInProgress
from cpr_native._tensor import describe
from cpr_native.device import DeviceEngine, describe_on
from cpr_native.errors import CprError

OPTIMIZERS = ["none", "sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"]
TRAINING = OPTIMIZERS[1:]
# What is for memory of the host alone.
HOST_ONLY = {"bind_state"}


def test_it_has_the_interface_of_a_collection() -> None:
    names = {name for name in dir(Collection) if not name.startswith("_")}
    assert names - set(dir(DeviceEngine)) == HOST_ONLY


@pytest.mark.parametrize("optimizer", TRAINING)
@pytest.mark.parametrize("lanes", LANES)
def test_steps_give_the_same_bits(optimizer: str, lanes: int) -> None:
    pair = EnginePair(optimizer=optimizer, lanes=lanes, spec={"drift": True})
    pair.assert_same()
    rng = np.random.default_rng(1)
    for _ in range(4):
        pair.step(rng)
    pair.assert_same()
    assert pair.device.step == 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    pair = EnginePair(optimizer="adam", spec={"dtype": dtype})
    rng = np.random.default_rng(2)
    for _ in range(3):
        pair.step(rng)
    pair.assert_same()
    assert pair.device.weight(0).dtype == getattr(torch, dtype)


def test_settings_are_in_force_from_the_next_update_on() -> None:
    pair = EnginePair(optimizer="adam")
    rng = np.random.default_rng(3)
    for name, value in [
        ("learning_rate", 0.3),
        ("eps", 1e-3),
        ("beta1", 0.5),
        ("beta2", 0.75),
        ("weight_decay", 0.25),
        ("step", 7),
    ]:
        for engine in (pair.cpu, pair.device):
            setattr(engine, name, value)
        pair.step(rng)
        pair.assert_same()


@pytest.mark.parametrize(("name", "value"), [("learning_rate", -1.0), ("eps", float("nan")), ("beta1", 1.0)])
def test_a_setting_out_of_range_is_refused_as_there(name: str, value: float) -> None:
    pair = EnginePair(optimizer="adam")
    messages = []
    for engine in (pair.cpu, pair.device):
        with pytest.raises(ValueError, match=name) as caught:
            setattr(engine, name, value)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    pair.assert_same()


def test_gradients_that_are_not_finite_skip_the_step() -> None:
    pair = EnginePair()
    ids, offsets = np.arange(4, dtype=np.int64), np.arange(5)
    _, batch, _, _ = pair.lookup(ids, offsets)
    grad = pair.on_device(torch.full((2, pair.device.output_dim), float("inf")))
    assert pair.device.update(batch, describe_on(pair.place, grad), threads=1)
    assert (pair.device.skipped_steps, pair.device.step) == (1, 0)
    assert not pair.device.dirty(0).any()


def test_frozen_tables_and_scaled_gradients() -> None:
    pair = EnginePair()
    ids, offsets = np.arange(8, dtype=np.int64), np.arange(9)
    batch, on_device, _, _ = pair.lookup(ids, offsets)
    grad = torch.ones(4, pair.cpu.output_dim)
    options: dict[str, Any] = {"threads": 1, "grad_scale": 0.5, "frozen": [1]}
    pair.cpu.update(batch, describe(grad), **options)
    copy = pair.on_device(grad)
    pair.device.update(on_device, describe_on(pair.place, copy), **options)
    pair.assert_same()
    assert pair.device.dirty(0).any()
    assert not pair.device.dirty(1).any()


def test_a_batch_is_used_once_and_by_its_engine() -> None:
    pair, other = EnginePair(), EnginePair()
    _, batch, _, _ = pair.lookup(np.arange(4, dtype=np.int64), np.arange(5))
    grad = pair.on_device(torch.ones(2, pair.device.output_dim))
    reference = describe_on(pair.place, grad)
    with pytest.raises(ValueError, match="batch of this collection"):
        other.device.update(batch, reference, threads=1)
    pair.device.update(batch, reference, threads=1)
    with pytest.raises(CprError, match="consumed before"):
        pair.device.update(batch, reference, threads=1)
    with pytest.raises(ValueError, match="multiplicity"):
        pair.device.update(batch, reference, threads=1, multiplicity=reference)  # type: ignore[arg-type]


def test_a_bad_id_is_raised_once_and_stops_updates_until_then() -> None:
    pair = EnginePair()
    _, batch, _, found = pair.lookup(np.arange(4, dtype=np.int64), np.arange(5))
    assert not found.isnan().any()
    ids = torch.tensor([1, 400, 2, 3])
    out = pair.on_device(torch.zeros(2, pair.device.output_dim))
    offsets = pair.on_device(torch.arange(5))
    given = [describe_on(pair.place, x) for x in (pair.on_device(ids), offsets, out)]
    ids_there = pair.on_device(ids)
    given[0] = describe_on(pair.place, ids_there)
    assert pair.device.lookup(given[0], given[1], None, given[2], threads=1, keep=False) is None
    with pytest.raises(IndexError, match=r"got id 400 at position 1 .*found by synchronize"):
        pair.device.synchronize()
    assert out.cpu()[1].isnan().any()
    grad = pair.on_device(torch.ones(2, pair.device.output_dim))
    pair.device.update(batch, describe_on(pair.place, grad), threads=1)
    pair.device.synchronize()
    assert pair.device.step == 1


def test_rows_and_trackers_are_read_and_written_as_there() -> None:
    pair = EnginePair(optimizer="adam", spec={"drift": True, "row_offset": 1000})
    rng = np.random.default_rng(4)
    for _ in range(3):
        pair.step(rng)
    rows = np.array([1003, 1000, 1299], np.int64)
    weight = rng.standard_normal((3, pair.dim)).astype(np.float32)
    state = rng.random((3, 2 * pair.dim)).astype(np.float32)
    for engine in (pair.cpu, pair.device):
        engine.load_rows(0, describe(rows), describe(weight), describe(state), dirty=True, threads=2)
        engine.put_rows(1, describe(rows[:2]), describe(weight[:2]), describe(state[:2]))
        engine.clear_trackers(0, 1100, 1200, dirty=True)
        engine.mark_dirty(0, describe(rows[:1]))
        engine.mark_dirty(1)
        engine.reset_rows(0, 1050, 1060)
        engine.discard_rows(0, 1061, 1063)
        assert engine.state_columns(0) == 2 * pair.dim
        back, state_back = np.empty_like(weight), np.empty_like(state)
        engine.copy_rows(0, describe(rows), describe(back), describe(state_back), threads=2)
        np.testing.assert_array_equal(back, weight)
        np.testing.assert_array_equal(state_back, state)
    pair.assert_same()
    words, drift = pair.cpu.trackers(0)[::-1].copy(), pair.cpu.drift(0) + np.float32(1)
    for engine in (pair.cpu, pair.device):
        engine.set_trackers(0, describe(words))
        engine.set_drift(0, describe(drift))
    pair.assert_same()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_rows_with_a_gradient_become_dirty(dtype: torch.dtype) -> None:
    pair = EnginePair(optimizer="none", spec={"row_offset": 50})
    grad = torch.zeros(300, pair.dim, dtype=dtype)
    grad[7, 1], grad[9, 0], grad[299, 7] = 1.0, -0.0, float("nan")
    assert pair.cpu.mark_dirty_nonzero(0, describe(grad)) == 3
    assert pair.device.mark_dirty_nonzero(0, pair.on_device(grad)) == 3
    pair.assert_same()
    with pytest.raises(ValueError, match=r"grad: expected shape \(300, 8\), got \(40, 8\)"):
        pair.device.mark_dirty_nonzero(0, pair.on_device(grad[:40]))


@pytest.mark.parametrize("blocking", [False, True])
def test_snapshots_take_the_same_rows(blocking: bool) -> None:
    pair = EnginePair(spec={"drift": True})
    rng = np.random.default_rng(6)
    for _ in range(3):
        pair.step(rng)
    selections = [Selection.most_used(40), Selection.dirty()]
    options: dict[str, Any] = {"clears_dirty": False, "shard_rows": [100, 40], "blocking": blocking}
    snapshots = [engine.begin(selections, **options) for engine in (pair.cpu, pair.device)]
    with pytest.raises(SnapshotInProgress):
        pair.device.reset_rows(0, 0, 10)
    if not blocking:
        pair.step(rng)
    taken = [drain(snapshot, 2) for snapshot in snapshots]
    assert [s.step for s in snapshots] == [3, 3]
    assert snapshots[1].rows_taken == snapshots[0].rows_taken
    for found, expected in zip(taken[1], taken[0], strict=True):
        for name in ("rows", "weight", "state", "count"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for snapshot in snapshots:
        snapshot.commit()
    pair.assert_same()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_gradients_for_torchs_optimizers(dtype: str) -> None:
    pair = EnginePair(optimizer="none", spec={"dtype": dtype})
    ids, offsets = np.array([5, 3, 5, 299, 0, 1, 1, 39], np.int64), np.arange(9)
    batch, on_device, _, _ = pair.lookup(ids, offsets)
    outer = torch.float64 if dtype == "float64" else torch.float32
    grad = torch.randn(4, pair.cpu.output_dim, dtype=outer)
    copy = pair.on_device(grad)
    for table in range(2):
        rows, values = pair.cpu.gradient(batch, describe(grad), table=table, threads=1)
        found = pair.device.gradient(on_device, describe_on(pair.place, copy), table=table, threads=1)
        assert found[0].device == pair.place.torch_device
        np.testing.assert_array_equal(found[0].cpu().numpy(), rows)
        np.testing.assert_array_equal(found[1].cpu().numpy(), values)
    pair.assert_same()
