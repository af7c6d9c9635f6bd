"""Modules whose parameters move to a device and back, change dtype or memory there, are copied or loaded."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from device_memory import ON_GPU, place_for_test
from device_twins import FUSED, Shape, assert_bits, assert_same, train, twins
from torch import nn

from cpr_native import Adam, DataType, EmbeddingBagCollection, RowWiseAdagrad, convert
from cpr_native.device import DeviceEngine, Place
from cpr_native.modules import _following
from cpr_native.optim import FusedOptimizer

Move = Callable[[EmbeddingBagCollection, Place], None]


def to_device(module: EmbeddingBagCollection, place: Place) -> None:
    if place.torch_device.type == "cpu":
        # What `sync` calls when it finds the weights on another device.
        _following.rebuild(module, replace(module.plan, place=place))
    else:
        module.to(place.torch_device)


def to_host(module: EmbeddingBagCollection, place: Place) -> None:
    if place.torch_device.type == "cpu":
        _following.rebuild(module, replace(module.plan, place=None))
    else:
        module.cpu()


def marked(module: EmbeddingBagCollection) -> EmbeddingBagCollection:
    """The module with all its rows dirty, as after a move."""
    for table in range(2):
        module.engine.mark_dirty(table)
    return module


@pytest.mark.parametrize("optimizer", FUSED, ids=lambda settings: settings.name)
def test_a_module_moves_there_and_back(optimizer: FusedOptimizer) -> None:
    shape, place = Shape(), place_for_test(seed=2)
    _, module = twins(place, shape, optimizer)
    _, twin = twins(place, shape, optimizer)
    steps = list(shape.steps(9))
    for at, move in enumerate((None, to_device, to_host)):
        if move is not None:
            move(module, place)
            assert isinstance(module.engine, DeviceEngine) is (move is to_device)
            assert_same(module, marked(twin))
        for given in steps[3 * at : 3 * at + 3]:
            for each in (module, twin):
                each.learning_rate = 0.1 / (at + 1)
                assert train(each, given).device == each.device
    assert_same(module, twin)


def test_the_fused_optimizer_goes_on_with_the_new_engine() -> None:
    shape, place = Shape(), place_for_test()
    _, module = twins(place, shape, RowWiseAdagrad(lr=0.5))
    _, twin = twins(place, shape, RowWiseAdagrad(lr=0.5))
    optimizers = [each.fused_optimizer for each in (module, twin)]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, gamma=0.5) for each in optimizers]
    for number, given in enumerate(shape.steps(4)):
        if number == 2:
            to_device(module, place)
            marked(twin)
        for each, scheduler in zip((module, twin), schedulers, strict=True):
            train(each, given)
            scheduler.step()
    assert module.fused_optimizer is optimizers[0]
    assert module.learning_rate == 0.5 / 16
    assert_same(module, twin)


def test_the_state_dict_of_the_fused_optimizer() -> None:
    shape, place = Shape(), place_for_test()
    for settings in FUSED:
        module, twin = twins(place, shape, settings)
        for given in shape.steps(2):
            train(module, given)
            train(twin, given)
        states = [each.fused_optimizer.state_dict() for each in (module, twin)]
        assert str(states[0]) == str(states[1])
        other, other_twin = twins(place, shape, settings, seed=9)
        other.fused_optimizer.load_state_dict(states[1])
        other_twin.fused_optimizer.load_state_dict(states[0])
        assert_same(other, other_twin)


@pytest.mark.parametrize("to", ["half", "bfloat16"])
def test_another_dtype_on_the_device(to: str) -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, Adam(lr=0.1))
    steps = list(shape.steps(4))
    for given in steps[:2]:
        train(module, given)
        train(twin, given)
    for each in (module, twin):
        getattr(each, to)()
    for given in steps[2:]:
        assert_bits(train(module, given), train(twin, given))
    assert isinstance(module.engine, DeviceEngine)
    assert module.plan.tables[0].data_type is {"half": DataType.FP16, "bfloat16": DataType.BF16}[to]
    assert_same(module, twin)


def replaced(module: EmbeddingBagCollection) -> None:
    for name in "ab":
        holder = module.embedding_bags[name]
        holder.weight = nn.Parameter(holder.weight.detach().clone())


def assigned(module: EmbeddingBagCollection) -> None:
    state = {key: weight.clone() for key, weight in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def swapped_data(module: EmbeddingBagCollection) -> None:
    for weight in module.parameters():
        weight.data = weight.data.clone()


def loaded(module: EmbeddingBagCollection) -> None:
    module.load_state_dict({key: 2 * weight for key, weight in module.state_dict().items()})


def written(module: EmbeddingBagCollection) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(3)


@pytest.mark.parametrize("change", [replaced, assigned, swapped_data, loaded, written])
def test_weights_that_somebody_changed_are_used_and_dirty(change: Callable[[Any], None]) -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, RowWiseAdagrad(lr=0.1))
    first, second = shape.steps(2)
    for each in (module, twin):
        train(each, first)
        each.engine.clear_trackers(1, 0, 7, dirty=True)
        change(each)
        train(each, second)
        assert each.engine.dirty(1).all()
    assert_same(module, twin)
    for table, weight in enumerate(module.parameters()):
        assert weight.data_ptr() == module._table_view(table).data_ptr()


def test_rows_that_are_announced_are_dirty() -> None:
    module, _ = twins(place_for_test(), Shape(), RowWiseAdagrad(lr=0.1))
    module.engine.clear_trackers(0, 0, 40, dirty=True)
    module.mark_dirty("a", [3, 5])
    assert module.engine.dirty(0).nonzero()[0].tolist() == [3, 5]
    with pytest.raises(IndexError):
        module.mark_dirty("a", [40])
    module.mark_dirty("a", torch.tensor([7], device=module.device))
    assert module.engine.num_dirty(0) == 3


def saved(module: EmbeddingBagCollection) -> Any:
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved])
@pytest.mark.parametrize("optimizer", [*FUSED, None], ids=lambda settings: getattr(settings, "name", "none"))
def test_copies_carry_all_and_are_independent(
    optimizer: FusedOptimizer | None, way: Callable[[Any], Any]
) -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, optimizer)
    first, second = shape.steps(2)
    for each in (module, twin):
        each.grad_scale = 0.5
        train(each, first)
    other = way(module)
    assert isinstance(other.engine, DeviceEngine)
    assert other.device == module.device
    assert_same(other, twin)
    train(other, second)
    assert_same(module, twin)
    train(twin, second)
    assert_same(other, twin)


def test_a_graph_of_torch_func_reads_the_weights() -> None:
    module, _ = twins(place_for_test(), Shape(), RowWiseAdagrad(lr=0.1))
    assert [name for name, _ in module.named_parameters()] == [
        "embedding_bags.a.weight",
        "embedding_bags.b.weight",
    ]
    for table, weight in enumerate(module.parameters()):
        assert_bits(weight, module._table_view(table))


@pytest.mark.parametrize("optimizer", FUSED, ids=lambda settings: settings.name)
def test_tables_in_memory_of_the_host(optimizer: FusedOptimizer) -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, optimizer, host_memory=True)
    first, second, third, fourth = shape.steps(4)
    for each in (module, twin):
        train(each, first)
        each.load_state_dict({key: weight.clone() for key, weight in each.state_dict().items()})
        train(each, second)
    assert {weight.device.type for weight in module.parameters()} == {"cpu"}
    assert module.device == place.torch_device
    assert_same(module, twin)
    other = copy.deepcopy(module)
    for each in (other, twin):
        each.half()
        train(each, third)
        train(each, fourth)
    assert other.plan.host_memory
    assert_same(other, twin)
    if ON_GPU:
        assert all(weight.is_pinned() for weight in (*module.parameters(), *other.parameters()))


@pytest.mark.skipif(not ON_GPU, reason="moves of torch's own need a GPU")
def test_models_are_converted_on_a_gpu() -> None:
    model = nn.Sequential(nn.EmbeddingBag(20, 4, mode="sum")).cuda()
    address = model[0].weight.data_ptr()
    convert(model, optimizer=RowWiseAdagrad(lr=0.1))
    model(torch.tensor([[1, 2]], device="cuda")).sum().backward()
    assert model[0].weight.data_ptr() == address
    assert isinstance(model[0].engine, DeviceEngine)
    model.cpu()
    model(torch.tensor([[1, 2]])).sum().backward()
    assert model[0].engine.step == 2


@pytest.mark.skipif(not ON_GPU, reason="moves of torch's own need a GPU")
def test_a_pickle_goes_where_its_weights_are_mapped() -> None:
    module, twin = twins(place_for_test(), Shape(), RowWiseAdagrad(lr=0.1))
    (given,) = Shape().steps(1)
    train(module, given)
    train(twin, given)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    other = torch.load(buffer, weights_only=False, map_location="cpu")
    assert not isinstance(other.engine, DeviceEngine)
    assert_same(other, twin)
