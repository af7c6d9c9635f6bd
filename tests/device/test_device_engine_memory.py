"""The memory of `DeviceEngine`: whose it is, how much, and when it goes."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from device_memory import place_for_test
from device_pair import EnginePair
from engine import drain

from cpr_native._native import Selection
from cpr_native._tensor import describe
from cpr_native.device import describe_on


def test_given_weights_are_used_where_they_lie() -> None:
    place = place_for_test()
    weights = [torch.randn(n, 8, device=place.torch_device) for n in (300, 40)]
    copies = [weight.cpu().clone() for weight in weights]
    pair = EnginePair(place=place, weights=weights)
    for table, weight in enumerate(weights):
        assert pair.device.weight(table).data_ptr() == weight.data_ptr()
        assert torch.equal(weight.cpu(), copies[table])
        assert pair.device.dirty(table).all()
        pair.cpu.bind_weight(table, describe(copies[table]), copies[table])
    pair.assert_same()
    pair.step(np.random.default_rng(4))
    pair.assert_same()
    with pytest.raises(ValueError, match="weights: expected one for each of 2 tables, got 1"):
        EnginePair(place=place, weights=weights[:1])
    with pytest.raises(ValueError, match="weight: expected"):
        EnginePair(place=place, weights=[weights[1], weights[0]])


def test_rows_of_external_tables_have_no_initial_values() -> None:
    place = place_for_test()
    weights = [torch.randn(n, 8, device=place.torch_device) for n in (300, 40)]
    copies = [weight.cpu().clone() for weight in weights]
    pair = EnginePair(place=place, weights=weights, optimizer="none", spec={"external": True})
    for table, copy in enumerate(copies):
        pair.cpu.bind_weight(table, describe(copy), copy)
    ids = np.arange(0, 300, 3)
    on_device = pair.on_device(ids)
    pair.cpu.track(0, describe(ids))
    pair.device.track(0, describe_on(place, on_device))
    for engine in (pair.cpu, pair.device):
        engine.reset_rows(0, 10, 200)
    pair.assert_same()
    for weight, copy in zip(weights, copies, strict=True):
        assert torch.equal(weight.cpu(), copy)


def test_bound_memory_is_used_and_let_go() -> None:
    pair = EnginePair()
    rng = np.random.default_rng(5)
    pair.step(rng)
    old = weakref.ref(pair.device.weight(0))
    moved = pair.device.weight(0).clone()
    kept = pair.cpu.weight(0).copy()
    pair.cpu.bind_weight(0, describe(kept), kept)
    pair.device.bind_weight(0, describe_on(pair.place, moved), moved)
    gc.collect()
    assert old() is None
    assert pair.device.weight(0) is moved
    pair.assert_same()
    pair.step(rng)
    pair.assert_same()
    again = moved.clone()
    pair.device.bind_weight(0, describe_on(pair.place, again), again)
    gone = weakref.ref(moved)
    del moved
    gc.collect()
    assert gone() is None
    with pytest.raises(ValueError, match=r"weight: expected"):
        pair.device.bind_weight(1, describe_on(pair.place, again), again)
    assert pair.device.weight(1) is not again


def test_binding_fails_a_snapshot_that_reads_the_old_memory() -> None:
    pair = EnginePair(rows=(5000, 40), max_staging_bytes=1 << 16)
    snapshot = pair.device.begin([Selection.all()] * 2, clears_dirty=True, walk=False)
    moved = pair.device.weight(0).clone()
    pair.device.bind_weight(0, describe_on(pair.place, moved), moved)
    assert snapshot.status == "failed"
    snapshot.abort()
    pair.device.begin([Selection.all()] * 2, clears_dirty=True).abort()


def test_memory_counts_what_is_held() -> None:
    pair = EnginePair(optimizer="adam", spec={"drift": True})
    found, expected = pair.device.memory(), pair.cpu.memory()
    assert found.keys() == expected.keys()
    for name in ("weight", "state", "metadata", "saved"):
        assert found[name] == expected[name], name
    assert found["ssu"] >= expected["ssu"]
    assert found["staging"] > 1 << 19


def test_host_memory_holds_rows_and_state() -> None:
    pair = EnginePair(optimizer="adagrad", host_memory=True)
    rng = np.random.default_rng(7)
    for _ in range(2):
        pair.step(rng)
    pair.assert_same()
    assert pair.device.weight(0).device.type == "cpu"


def test_too_little_staging_is_refused() -> None:
    with pytest.raises(ValueError, match="max_staging_bytes: expected at least"):
        EnginePair(max_staging_bytes=100)


def test_nothing_of_an_earlier_process_is_there() -> None:
    device = EnginePair().device
    device.reattach()
    assert device.region is None
    assert device.doubtful_rows(0).tolist() == []


def test_engines_are_freed_with_the_last_reference() -> None:
    pair = EnginePair()
    gone = [weakref.ref(pair.device), weakref.ref(pair.device.weight(0))]
    pair.step(np.random.default_rng(8))
    pair.device.close()
    del pair
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_small_tables_keep_little_staging() -> None:
    pair = EnginePair(rows=(10,), max_staging_bytes=256 << 20)
    assert pair.device.memory()["staging"] < 1 << 20
    snapshot = pair.device.begin([Selection.all()], clears_dirty=True, walk=False)
    pair.step(np.random.default_rng(9))
    snapshot.walk()
    assert len(drain(snapshot, 1)[0].rows) == 10
