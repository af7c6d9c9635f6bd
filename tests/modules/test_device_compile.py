"""`torch.compile(fullgraph=True)` of modules with their tables on a device: as eagerly, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_memory import place_for_test
from device_twins import STAGING, Shape, assert_bits, assert_same, on
from torch import Tensor, nn

from cpr_native import Adam, Embedding, EmbeddingBag, EmbeddingBagCollection, RowWiseAdagrad
from cpr_native.device import Place
from cpr_native.optim import FusedOptimizer

# Inductor imports parts of torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
SHAPE = Shape()


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """A collection, a bag with per-sample weights and an embedding, all looked up with the same ids."""

    def __init__(self, optimizer: FusedOptimizer | None, place: Place) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            SHAPE.configs(), optimizer=optimizer, device=place, sparse=False, max_staging_bytes=STAGING
        )
        torch.manual_seed(3)
        self.bag = EmbeddingBag(40, 4, mode="sum", optimizer=optimizer, padding_idx=3, device=place)
        self.embedding = Embedding(40, 4, optimizer=optimizer, padding_idx=1, device=place)

    def forward(self, ids: Tensor, offsets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.tables(ids, offsets), self.bag(ids, offsets[:-1], weights), self.embedding(ids)


@pytest.mark.parametrize("optimizer", [RowWiseAdagrad(lr=0.1), Adam(lr=0.1), None])
def test_training_is_that_of_eager_modules(optimizer: FusedOptimizer | None) -> None:
    place = place_for_test()
    plain, model = Model(optimizer, place), Model(optimizer, place)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    for given in SHAPE.steps(3, longest=20):
        outs, grads = [], []
        for module in (compiled, plain):
            ids, offsets, weights, _ = on(place, *vars(given).values())
            weights.requires_grad_(optimizer is None)
            found = module(ids, offsets, weights)
            outs.append(found)
            torch.stack([(out * out).sum() for out in found]).sum().backward()
            grads.append(weights.grad)
        for out, expected in zip(*outs, strict=True):
            assert out.device == place.torch_device
            assert_bits(out, expected)
        for weight, expected in zip(model.parameters(), plain.parameters(), strict=True):
            assert (weight.grad is None) == (expected.grad is None) == (optimizer is not None)
            if weight.grad is not None and expected.grad is not None:
                assert_bits(weight.grad, expected.grad)
        if optimizer is None:
            assert_bits(*grads)
    for name in ("tables", "bag", "embedding"):
        assert_same(getattr(model, name), getattr(plain, name))


def test_inference_changes_nothing() -> None:
    place = place_for_test()
    plain, model = Model(Adam(lr=0.1), place), Model(Adam(lr=0.1), place)
    compiled: Any = torch.compile(model.eval(), fullgraph=True, backend="aot_eager")
    (given,) = SHAPE.steps(1)
    with torch.no_grad():
        compiled(*on(place, given.ids, given.offsets, given.weights))
    assert_same(model.tables, plain.tables)


def test_a_bad_id_is_raised_by_the_next_call() -> None:
    place = place_for_test()
    module = EmbeddingBagCollection(
        SHAPE.configs(), optimizer=Adam(lr=0.1), device=place, max_staging_bytes=STAGING
    )
    compiled: Any = torch.compile(module, fullgraph=True, backend="aot_eager")
    before = [weight.detach().clone() for weight in module.parameters()]
    (given,) = SHAPE.steps(1)
    ids, offsets = on(place, given.ids, given.offsets)
    ids[2] = 40
    with pytest.raises(IndexError, match="got id 40 at position 2"):  # noqa: PT012
        compiled(ids, offsets).sum().backward()
        module.synchronize()
    for weight, expected in zip(module.parameters(), before, strict=True):
        assert_bits(weight, expected)
