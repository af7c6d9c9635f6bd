"""Collections with their tables on a device: the bits of the same collections on the CPU."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from device_memory import LANES, place_for_test
from device_twins import FUSED, STAGING, Shape, assert_bits, assert_same, on, train, twins
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cpr_native import DataType, EmbeddingBagCollection, EmbeddingCollection, PoolingType, RowWiseAdagrad
from cpr_native.optim import FusedOptimizer

HALVES = [DataType.FP16, DataType.BF16]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("optimizer", FUSED, ids=lambda settings: settings.name)
def test_training_is_that_of_the_cpu(optimizer: FusedOptimizer, lanes: int) -> None:
    shape = Shape()
    module, twin = twins(place_for_test(lanes, seed=3), shape, optimizer)
    for given in shape.steps(4):
        assert_bits(train(module, given), train(twin, given))
    assert_same(module, twin)
    assert module.memory()["weight"] == twin.memory()["weight"]


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.value)
@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN, PoolingType.MAX])
def test_poolings_of_half_precision(pooling: PoolingType, kind: DataType) -> None:
    shape = Shape(kind=kind, pooling=pooling)
    for optimizer in FUSED:
        module, twin = twins(place_for_test(), shape, optimizer)
        for given in shape.steps(3):
            assert_bits(train(module, given), train(twin, given))
        assert_same(module, twin)


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.MAX])
def test_poolings(pooling: PoolingType) -> None:
    shape = Shape(pooling=pooling)
    for optimizer in FUSED:
        module, twin = twins(place_for_test(), shape, optimizer)
        for given in shape.steps(3):
            assert_bits(train(module, given), train(twin, given))
        assert_same(module, twin)


def test_per_sample_weights_and_their_gradient() -> None:
    shape, place = Shape(), place_for_test(seed=5)
    module, twin = twins(place, shape, RowWiseAdagrad(lr=0.2))
    for given in shape.steps(3):
        grads = []
        for each in (module, twin):
            ids, offsets, weights, grad = (x.to(each.device) for x in vars(given).values())
            weights = weights.clone().requires_grad_()
            each(ids, offsets, weights).backward(grad)
            assert weights.grad is not None
            grads.append(weights.grad)
        assert grads[0].device == place.torch_device
        assert_bits(*grads)
    assert_same(module, twin)


def test_ids_may_be_overwritten_after_forward() -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, RowWiseAdagrad(lr=0.2))
    for given in shape.steps(2):
        ids, offsets, grad = on(place, given.ids, given.offsets, given.grad)
        out = module(ids, offsets)
        ids.zero_(), offsets.zero_()
        out.backward(grad)
        train(twin, given)
    assert_same(module, twin)


def test_frozen_tables_eval_and_no_grad_change_nothing() -> None:
    shape = Shape()
    module, twin = twins(place_for_test(), shape, RowWiseAdagrad(lr=0.2))
    (first, second, third) = shape.steps(3)
    for each in (module, twin):
        each.embedding_bags["b"].weight.requires_grad_(False)
        train(each, first)
        each.eval()
        ids, offsets = first.ids.to(each.device), first.offsets.to(each.device)
        with torch.no_grad():
            each(ids, offsets)
        assert not each(ids, offsets).requires_grad
        each.train()
        each.learning_rate = 0.05
        each.grad_scale = 0.5
        train(each, second)
        each.embedding_bags["b"].weight.requires_grad_(True)
        train(each, third)
    assert_same(module, twin)


def test_a_gradient_that_is_not_finite_skips_the_step() -> None:
    shape = Shape()
    module, twin = twins(place_for_test(), shape, RowWiseAdagrad(lr=0.2))
    for number, given in enumerate(shape.steps(4)):
        if number % 2:
            given.grad[1, 2] = torch.nan
        train(module, given)
        train(twin, given)
    assert module.skipped_steps == twin.skipped_steps == 2
    assert_same(module, twin)


def test_autocast_takes_the_gradient_of_another_dtype() -> None:
    shape, place = Shape(), place_for_test()
    module, twin = twins(place, shape, RowWiseAdagrad(lr=0.2))
    heads = [torch.nn.Linear(21, 1)]
    heads.insert(0, copy.deepcopy(heads[0]).to(place.torch_device))
    for given in shape.steps(2):
        for each, head in zip((module, twin), heads, strict=True):
            ids, offsets = given.ids.to(each.device), given.offsets.to(each.device)
            with torch.autocast(each.device.type, dtype=torch.bfloat16):
                head(each(ids, offsets)).sum().backward()
    assert module.engine.step == twin.engine.step == 2
    if place.torch_device.type == "cpu":
        assert_same(module, twin)


class Waits(TorchDispatchMode):
    """Collects the operations of torch that need a value of the device on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(part in name for part in ("_local_scalar_dense", "nonzero", "masked_select", "_to_copy")):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_a_step_of_a_collection_waits_for_nothing() -> None:
    shape, place = Shape(), place_for_test()
    for optimizer in FUSED:
        module, _ = twins(place, shape, optimizer)
        for given in shape.steps(2):
            ids, offsets, weights, grad = on(place, *vars(given).values())
            weights.requires_grad_()
            with Waits() as waits:
                module(ids, offsets, weights).backward(grad)
            assert waits.seen == []


@pytest.mark.parametrize("optimizer", FUSED, ids=lambda settings: settings.name)
def test_a_row_an_id(optimizer: FusedOptimizer) -> None:
    shape, place = Shape(dims=(8, 8)), place_for_test()
    module, twin = (
        EmbeddingCollection(shape.unpooled(), optimizer=optimizer, device=device, max_staging_bytes=STAGING)
        for device in (place, None)
    )
    for given in shape.steps(3):
        outs = []
        for each in (module, twin):
            out = each(given.ids.to(each.device), given.offsets.to(each.device))
            total = [(rows * torch.arange(8, device=each.device)).sum() for rows in out.values()]
            torch.stack(total).sum().backward()
            outs.append(out)
        assert outs[0].keys() == outs[1].keys()
        for key, rows in outs[0].items():
            assert rows.device == place.torch_device
            assert_bits(rows, outs[1][key])
    assert_same(module, twin)


def test_a_row_an_id_reads_the_host_at_once() -> None:
    """Its result has shapes that are in the offsets."""
    shape, place = Shape(dims=(8, 8)), place_for_test()
    module = EmbeddingCollection(
        shape.unpooled(), optimizer=FUSED[0], device=place, max_staging_bytes=STAGING
    )
    (given,) = shape.steps(1)
    ids, offsets = on(place, given.ids, given.offsets)
    with Waits() as waits:
        module(ids, offsets)
    assert waits.seen != []
    offsets[2] = -1
    with pytest.raises(ValueError, match=r"offsets\[2\]"):
        module(ids, offsets)


KINDS = [DataType.FP32, DataType.FP64, DataType.BF16]
SPARSE = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam]
DENSE = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam]
# torch has no sparse steps in bfloat16.
TORCHS = [(True, kind, of) for kind, of in itertools.product(SPARSE, KINDS[:2])]
TORCHS += [(False, kind, of) for kind, of in itertools.product(DENSE, KINDS)]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("sparse", "kind", "data_type"), TORCHS)
def test_gradients_for_the_optimizers_of_torch(
    sparse: bool, kind: type[torch.optim.Optimizer], data_type: DataType
) -> None:
    shape, place = Shape(kind=data_type), place_for_test()
    module, twin = twins(place, shape, None, sparse=sparse)
    options: dict[str, Any] = {"lr": 0.1}
    steps = [(each, kind(each.parameters(), **options)) for each in (module, twin)]
    for given in shape.steps(3):
        for each, optimizer in steps:
            optimizer.zero_grad()
            train(each, given)
        for weight, expected in zip(module.parameters(), twin.parameters(), strict=True):
            assert weight.grad is not None
            assert expected.grad is not None
            assert weight.grad.is_sparse is sparse
            assert weight.grad.device == place.torch_device
            assert_bits(dense(weight.grad), dense(expected.grad))
        for _, optimizer in steps:
            optimizer.step()
    for table in range(2):
        assert module.engine.trackers(table).tolist() == twin.engine.trackers(table).tolist()


def dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def test_the_device_of_a_collection_is_that_of_what_it_takes_and_gives() -> None:
    place = place_for_test()
    module, _ = twins(place, Shape(), FUSED[0])
    (given,) = Shape().steps(1)
    assert module.device == place.torch_device
    assert train(module, given).device == place.torch_device
    assert {weight.device for weight in module.parameters()} == {place.torch_device}


def test_two_collections_share_a_device() -> None:
    shape, place = Shape(), place_for_test()
    pairs = [twins(place, shape, optimizer) for optimizer in (FUSED[1], FUSED[3])]
    for given in shape.steps(3):
        for module, twin in pairs:
            assert_bits(train(module, given), train(twin, given))
    for module, twin in pairs:
        assert_same(module, twin)
    assert isinstance(pairs[0][0], EmbeddingBagCollection)
