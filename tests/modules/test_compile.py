"""`torch.compile(fullgraph=True)`: the same outputs, rows and trackers as eagerly, under every backend."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_native import (
    SGD,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    RowWiseAdagrad,
)
from cpr_native.modules import EngineModule, Request, _compile

# Inductor imports parts of torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
ROWS, DIM = 20, 4
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """All three modules; the bag is used twice with the same ids, and all are in one graph."""

    def __init__(self, optimizer: Any, *, sparse: bool = False) -> None:
        super().__init__()
        self.bag = EmbeddingBag(ROWS, DIM, mode="sum", optimizer=optimizer, padding_idx=3, sparse=sparse)
        self.embedding = Embedding(ROWS, DIM, optimizer=optimizer, padding_idx=1)
        tables = [
            EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name])
            for name in "ab"
        ]
        self.tables = EmbeddingBagCollection(tables, optimizer=optimizer)
        self.head = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor, offsets: Tensor, weights: Tensor, flat: Tensor, bounds: Tensor) -> Tensor:
        bags = self.bag(ids, offsets, weights) + 2 * self.bag(ids, offsets, weights)
        both = self.tables(flat, bounds)
        parts = bags + self.embedding(ids[: offsets.shape[0]]), both[:, :DIM] * both[:, DIM:]
        total: Tensor = self.head(parts[0]).sum() + self.head(parts[1]).sum()
        return total

    def engines(self) -> list[EngineModule]:
        return [self.bag, self.embedding, self.tables]


def batch(bags: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, ROWS, (3 * bags,), generator=generator)
    flat = torch.randint(0, ROWS, (2 * bags,), generator=generator)
    weights = torch.rand(3 * bags, generator=generator)
    return ids, torch.arange(bags) * 3, weights, flat, torch.arange(2 * bags + 1)


def pair(optimizer: Any, backend: str, **options: Any) -> tuple[Model, Any, Model]:
    torch.manual_seed(0)
    model = Model(optimizer, **options)
    return model, torch.compile(model, fullgraph=True, backend=backend), copy.deepcopy(model)


def assert_same(model: Model, plain: Model) -> None:
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, plain.get_parameter(name), msg=lambda text, n=name: f"{n}: {text}")
    for ours, theirs in zip(model.engines(), plain.engines(), strict=True):
        assert ours.engine.step == theirs.engine.step
        for table in range(len(ours.plan.tables)):
            np.testing.assert_array_equal(ours.engine.trackers(table), theirs.engine.trackers(table))


CASES = [
    (backend, optimizer, sparse)
    for backend in ("eager", "aot_eager")
    for optimizer, sparse in ((RowWiseAdagrad(lr=0.1), False), (None, False), (None, True))
]


@pytest.mark.parametrize(
    ("backend", "optimizer", "sparse"), [*CASES, ("inductor", RowWiseAdagrad(lr=0.1), False)]
)
def test_training_is_the_same(backend: str, optimizer: Any, sparse: bool) -> None:
    model, compiled, plain = pair(optimizer, backend, sparse=sparse)
    steppers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, plain)]
    for step, bags in enumerate((4, 6, 5, 7)):
        ids, offsets, weights, *rest = batch(bags, step)
        grads = []
        for module, stepper in zip((compiled, plain), steppers, strict=True):
            own = weights.clone().requires_grad_(optimizer is None)
            out = module(ids, offsets, own, *rest)
            out.backward()
            stepper.step()
            stepper.zero_grad()
            grads.append((out.detach(), own.grad))
        torch.testing.assert_close(grads[0], grads[1])
    # One graph for the first batch size and one for all others.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert_same(model, plain)
    assert model.bag.engine.step == 8

    before = copy.deepcopy(model)
    compiled.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(*batch(5, 9)), plain.eval()(*batch(5, 9)))
    assert_same(model, before)
    assert not _compile._calls


def small(**options: Any) -> tuple[EmbeddingBag, Any]:
    torch.manual_seed(0)
    bag = EmbeddingBag(8, 2, mode="sum", **{"optimizer": SGD(lr=1.0), **options})
    return bag, torch.compile(bag, fullgraph=True, backend="aot_eager")


IDS = torch.tensor([[1, 2], [2, 3]])


def test_two_forwards_before_one_backward() -> None:
    (bag, compiled), (plain, _) = small(), small()
    (compiled(IDS) * compiled(IDS + 1)).sum().backward()
    (plain(IDS) * plain(IDS + 1)).sum().backward()
    torch.testing.assert_close(bag.weight, plain.weight)
    assert bag.engine.step == 2


def test_forward_alone_updates_nothing_and_its_batch_is_freed() -> None:
    bag, compiled = small()
    out = compiled(IDS)
    assert len(_compile._calls) == 1
    del out
    assert not _compile._calls
    with torch.no_grad():
        compiled(IDS)
    bag.eval()
    assert not compiled(IDS).requires_grad
    assert not _compile._calls
    assert bag.engine.step == 0
    assert not bag.engine.counts(0).any()


def test_the_caller_may_overwrite_the_ids() -> None:
    bag, compiled = small()
    ids = IDS.clone()
    out = compiled(ids)
    ids.fill_(7)
    out.sum().backward()
    assert bag.engine.counts(0).tolist() == [0, 1, 2, 1, 0, 0, 0, 0]


def test_what_changes_between_steps_needs_no_new_graph() -> None:
    (bag, compiled), (plain, _) = small(), small()
    for module, look_up in ((bag, compiled), (plain, plain)):
        look_up(IDS).sum().backward()
        module.learning_rate = 0.5
        look_up(IDS).sum().backward()
        module.grad_scale = 0.25
        look_up(IDS).sum().backward()
        module.weight.data = module.weight.data.clone()
        look_up(IDS).mul(float("nan")).sum().backward()
        look_up(IDS).sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(bag.weight, plain.weight)
    assert (bag.engine.step, bag.skipped_steps) == (4, 1)
    assert bag.engine.weight(0).ctypes.data == bag.weight.data_ptr()


def test_bad_id_raises_and_changes_nothing() -> None:
    bag, compiled = small()
    before = bag.weight.detach().clone()
    with pytest.raises(IndexError, match="position 1"):
        compiled(torch.tensor([[1, 8]]))
    assert torch.equal(bag.weight, before)
    assert not bag.engine.counts(0).any()


def test_second_backward_raises() -> None:
    bag, compiled = small()
    out = compiled(IDS).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"second backward|modified by an inplace|donated buffers"):
        out.backward()
    assert bag.engine.step == 1


def test_frozen_table_and_per_sample_weights() -> None:
    bag, compiled = small()
    bag.requires_grad_(False)
    weights = torch.ones(2, 2, requires_grad=True)
    before = bag.weight.detach().clone()
    compiled(IDS, None, weights).sum().backward()
    torch.testing.assert_close(weights.grad, before.sum(dim=1)[IDS])
    assert torch.equal(bag.weight, before)
    bag.requires_grad_(True)
    compiled(IDS, None, weights).sum().backward()
    assert bag.engine.step == 1


def test_per_sample_weights_gradient_after_another_update_raises() -> None:
    _, compiled = small()
    weights = torch.ones(2, 2, requires_grad=True)
    out = compiled(IDS, None, weights)
    compiled(IDS).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_sparse_gradients_reach_the_weights_hooks() -> None:
    bag, compiled = small(optimizer=None, sparse=True)
    heard = list[Tensor]()
    bag.weight.register_hook(heard.append)
    compiled(IDS).sum().backward()
    compiled(IDS).sum().backward()
    assert [grad.is_sparse for grad in heard] == [True, True]
    assert bag.weight.grad is not None
    assert bag.weight.grad.to_dense()[:, 0].tolist() == [0, 2, 4, 2, 0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(compiled(IDS).sum(), bag.weight)


def test_observer_hears_of_compiled_updates() -> None:
    bag, compiled = small(padding_idx=3)
    heard = list[list[int]]()

    def observer(request: Request, _frozen: Any) -> Any:
        ids: list[int] = request.ids.tolist()
        return lambda: heard.append(ids)

    bag.observe_updates(observer)
    compiled(IDS).sum().backward()
    assert heard == [[1, 2, 2]]


def test_copies_have_graphs_of_their_own() -> None:
    bag, _ = small()
    bag.compile(fullgraph=True, backend="aot_eager")
    bag(IDS).sum().backward()
    before = bag.weight.detach().clone()
    for twin in (copy.deepcopy(bag), pickle.loads(pickle.dumps(bag))):
        twin.compile(fullgraph=True, backend="aot_eager")
        twin(IDS).sum().backward()
        assert torch.equal(bag.weight, before)
        assert not torch.equal(twin.weight, before)
