"""What modules with their tables on a device refuse, and what becomes of ids that are out of range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from device_memory import ON_GPU, place_for_test
from device_twins import FUSED, Shape, assert_same, on, train, twins
from torch import Tensor

from cpr_native import (
    SGD,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    RowWiseAdagrad,
    SharedMemory,
    cuda,
)
from cpr_native.device import host_place
from cpr_native.modules import _following

REASON = "no NVIDIA driver: libcuda.so.1 was not found"


def steps(count: int) -> Any:
    return Shape().steps(count)


@pytest.mark.parametrize("bad", [40, -1])
def test_a_bad_id_is_raised_by_the_next_call_and_writes_nothing(bad: int) -> None:
    place = place_for_test()
    module, twin = twins(place, Shape(), RowWiseAdagrad(lr=0.1))
    first, second, third = steps(3)
    train(module, first)
    train(twin, first)
    ids, offsets, grad = on(place, second.ids, second.offsets, second.grad)
    ids[3] = bad
    with pytest.raises(IndexError, match=f"table 'a', got id {bad} at position 3"):  # noqa: PT012
        out = module(ids, offsets)
        out.backward(grad)
        module.synchronize()
    assert_same(module, twin)
    train(module, third)
    train(twin, third)
    assert_same(module, twin)


def test_the_bag_of_a_bad_id_is_nan_and_the_others_are_not() -> None:
    place = place_for_test()
    module, _ = twins(place, Shape(), RowWiseAdagrad(lr=0.1))
    ids = torch.tensor([1, 99, 2, 3, 4, 5], device=place.torch_device)
    out = module(ids, torch.arange(7, device=place.torch_device))
    assert out.detach().isnan().any(dim=1).tolist() == [False, True]
    with pytest.raises(IndexError, match="99"):
        module.synchronize()
    module.synchronize()


@pytest.mark.parametrize("bad", [[1, 2, 3, 4, 5, 6, 6], [0, 2, 1, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 7]])
def test_bad_offsets_are_raised_by_the_next_call(bad: list[int]) -> None:
    place = place_for_test()
    module, twin = twins(place, Shape(), RowWiseAdagrad(lr=0.1))
    ids = torch.arange(6, device=place.torch_device)
    with pytest.raises(ValueError, match="offsets"):  # noqa: PT012
        module(ids, torch.tensor(bad, device=place.torch_device)).sum().backward()
        module.synchronize()
    assert_same(module, twin)


def test_synchronize_of_the_cpu_has_nothing_to_do() -> None:
    _, twin = twins(place_for_test(), Shape(), RowWiseAdagrad(lr=0.1))
    twin.synchronize()


@pytest.mark.parametrize("wrong", ["ids", "offsets", "per_sample_weights"])
def test_tensors_on_another_device_are_refused(wrong: str) -> None:
    place = place_for_test()
    module, _ = twins(place, Shape(), SGD(lr=0.1))
    (given,) = steps(1)
    ids, offsets, weights, _ = on(place, *vars(given).values())
    tensors: dict[str, Tensor] = {"ids": ids, "offsets": offsets, "per_sample_weights": weights}
    tensors[wrong] = tensors[wrong].to("meta")
    where = f"on device {place.torch_device}" if ON_GPU else "in CPU memory"
    with pytest.raises(ValueError, match=f"{wrong}: expected a tensor {where}, got one on device meta"):
        module(**tensors)
    bag = EmbeddingBag(10, 4, device=place)
    with pytest.raises(ValueError, match=f"input: expected a tensor {where}, got one on device meta"):
        bag(torch.zeros(2, 2, dtype=torch.int64, device="meta"))


def collection(**options: Any) -> EmbeddingBagCollection:
    tables = [EmbeddingBagConfig(name="a", num_embeddings=5, embedding_dim=4, feature_names=["x"])]
    return EmbeddingBagCollection(tables, **{"optimizer": SGD(lr=0.1), **options})


def test_a_gpu_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "why_not", lambda _device=None: REASON)
    for make in (collection, lambda device: EmbeddingBag(5, 4, device=device)):
        with pytest.raises(RuntimeError, match=f"device cuda:1: {REASON}"):
            make(device="cuda:1")


def test_other_devices_are_refused() -> None:
    for make in (collection, lambda device: EmbeddingBag(5, 4, device=device)):
        with pytest.raises(ValueError, match="device: expected cpu or cuda, got meta"):
            make(device="meta")


def test_weights_elsewhere_than_asked_for_are_refused() -> None:
    place = place_for_test()
    weight = torch.zeros(5, 4, device="meta")
    with pytest.raises(ValueError, match="table 'a': weight: expected a tensor on device"):
        collection(device=place, _weights=[weight])
    with pytest.raises(ValueError, match="_weight: expected a tensor on device"):
        EmbeddingBag(5, 4, device=place, _weight=weight)


def test_tables_in_memory_of_the_host_need_a_gpu_and_a_fused_optimizer() -> None:
    with pytest.raises(ValueError, match="host_memory: expected a GPU"):
        collection(host_memory=True)
    with pytest.raises(ValueError, match="host_memory: expected a fused optimizer"):
        collection(host_memory=True, device=place_for_test(), optimizer=None)


def test_a_move_under_a_manager_is_refused() -> None:
    place = place_for_test()
    _, module = twins(place, Shape(), SGD(lr=0.1))
    module.observe_updates(lambda _request, _frozen: lambda: None)
    engine = module.engine
    with pytest.raises(RuntimeError, match="device changed under a RecoveryManager"):
        _following.rebuild(module, module.plan)
    assert module.engine is engine


def test_a_move_that_fails_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_for_test()
    module, twin = twins(place, Shape(), RowWiseAdagrad(lr=0.1))
    first, second = steps(2)
    for each in (module, twin):
        train(each, first)
    module.embedding_bags["b"].weight = torch.nn.Parameter(torch.zeros(7, 5, device="meta"))
    with pytest.raises(ValueError, match="table 'b': weight: expected all tables on one device"):
        train(module, second)
    module.embedding_bags["b"].weight = torch.nn.Parameter(
        twin.embedding_bags["b"].weight.detach().to(place.torch_device, copy=True)
    )
    twin.engine.mark_dirty(1)
    for each in (module, twin):
        train(each, second)
    assert_same(module, twin)


def test_the_second_backward_through_one_lookup_is_refused() -> None:
    place = place_for_test()
    for optimizer in FUSED:
        module, twin = twins(place, Shape(), optimizer)
        (given,) = steps(1)
        ids, offsets, grad = on(place, given.ids, given.offsets, given.grad)
        out = module(ids, offsets)
        out.backward(grad, retain_graph=True)
        with pytest.raises(RuntimeError, match="second backward"):
            out.backward(grad)
        train(twin, given)
        assert_same(module, twin)


def test_shared_memory_is_for_tables_on_the_cpu(tmp_path: Any) -> None:
    place = host_place() if not ON_GPU else place_for_test()
    memory = SharedMemory(tmp_path / "tables")
    with pytest.raises(ValueError, match="shared memory: expected tables on the CPU"), memory:
        collection(device=place)


def test_tables_in_shared_memory_stay_on_the_cpu(tmp_path: Any) -> None:
    with SharedMemory(tmp_path / "tables"):
        module = collection()
    with pytest.raises(ValueError, match="shared memory: expected tables that stay on the CPU"):
        _following.rebuild(module, replace(module.plan, place=place_for_test()))
    assert module.device == torch.device("cpu")
