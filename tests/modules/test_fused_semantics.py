"""What a fused optimizer step means for autograd: when it happens, when it raises, what it leaves alone."""

from __future__ import annotations

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
from cpr_native.modules import Request

IDS = torch.tensor([[1, 2], [2, 3]])


def fused(**options: Any) -> EmbeddingBag:
    torch.manual_seed(0)
    return EmbeddingBag(8, 4, mode="sum", optimizer=SGD(lr=1.0), **options)


def changed_rows(bag: EmbeddingBag, before: Tensor) -> list[int]:
    rows: list[int] = (bag.weight.detach() != before).any(dim=1).nonzero().reshape(-1).tolist()
    return rows


def test_backward_is_one_step_and_leaves_no_gradient() -> None:
    bag = fused()
    before = bag.weight.detach().clone()
    bag(IDS).sum().backward()
    assert bag.weight.grad is None
    assert changed_rows(bag, before) == [1, 2, 3]
    assert torch.equal(bag.weight[2], before[2] - 2.0)
    assert bag.engine.step == 1


def test_gradient_accumulation_is_one_step_per_backward() -> None:
    bag = fused()
    for _ in range(3):
        bag(IDS).sum().backward()
    assert bag.engine.step == 3
    assert bag.engine.counts(0).tolist() == [0, 3, 6, 3, 0, 0, 0, 0]


def test_ids_are_copied_in_forward() -> None:
    bag = fused()
    before = bag.weight.detach().clone()
    ids, weights = IDS.clone(), torch.ones(2, 2)
    out = bag(ids, None, weights)
    ids.fill_(7)
    weights.fill_(100.0)
    out.sum().backward()
    assert changed_rows(bag, before) == [1, 2, 3]
    assert torch.equal(bag.weight[1], before[1] - 1.0)


def test_second_backward_raises_and_changes_nothing() -> None:
    bag = fused()
    out = bag(IDS).sum()
    out.backward(retain_graph=True)
    after = bag.weight.detach().clone()
    with pytest.raises(RuntimeError, match="second backward"):
        out.backward()
    assert torch.equal(bag.weight, after)
    again = bag(IDS).sum()
    again.backward()
    with pytest.raises(RuntimeError, match="second time"):
        again.backward()
    assert bag.engine.step == 2


def test_create_graph_raises_and_changes_nothing() -> None:
    bag = fused()
    before = bag.weight.detach().clone()
    with pytest.raises(RuntimeError, match="no second derivative"):
        bag(IDS).pow(2).sum().backward(create_graph=True)
    assert changed_rows(bag, before) == []
    assert not bag.engine.counts(0).any()


@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), None])
def test_gradients_of_other_inputs_alone_neither_step_nor_count(optimizer: Any) -> None:
    bag = EmbeddingBag(8, 4, mode="sum", optimizer=optimizer)
    before = bag.weight.detach().clone()
    scale, weights = torch.ones((), requires_grad=True), torch.rand(2, 2, requires_grad=True)
    out = (bag(IDS, None, weights) * scale).sum()
    torch.autograd.grad(out, scale, retain_graph=True)
    (grad,) = torch.autograd.grad(out, weights, retain_graph=True)
    torch.testing.assert_close(grad, before.sum(dim=1)[IDS])
    out.backward(inputs=[weights], retain_graph=True)
    assert bag.engine.step == 0
    assert not bag.engine.counts(0).any()
    assert torch.equal(bag.weight, before)
    out.backward()
    assert bag.engine.step == 1
    assert bag.engine.counts(0).tolist() == [0, 1, 2, 1, 0, 0, 0, 0]


def test_gradient_of_the_weight_alone() -> None:
    bag = EmbeddingBag(8, 4, mode="sum")
    weights = torch.ones(2, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(bag(IDS, None, weights).sum(), bag.weight)
    assert grad[:, 0].tolist() == [0, 1, 2, 1, 0, 0, 0, 0]
    assert bag.engine.step == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_gradient_is_skipped_whole_and_counted(bad: float) -> None:
    bag = fused()
    before = bag.weight.detach().clone()
    bag.engine.clear_trackers(0, 0, 8, dirty=True)
    version = bag.weight._version
    out = bag(IDS)
    grad = torch.ones_like(out)
    grad[1, 3] = bad
    out.backward(grad)
    assert changed_rows(bag, before) == []
    assert bag.skipped_steps == 1
    assert bag.engine.step == 0
    assert not bag.engine.counts(0).any()
    assert not bag.engine.dirty(0).any()
    assert bag.weight._version == version


def test_expanded_and_strided_gradients() -> None:
    one, other = fused(), fused()
    one(IDS).sum().backward()
    other(IDS).backward(torch.ones(4, 2).t())
    assert torch.equal(one.weight, other.weight)


def test_frozen_table_is_left_alone() -> None:
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=5, embedding_dim=2, feature_names=[name])
        for name in "ab"
    ]
    collection = EmbeddingBagCollection(tables, optimizer=SGD(lr=1.0))
    collection.get_parameter("embedding_bags.a.weight").requires_grad_(False)
    before = [collection.engine.weight(table).copy() for table in range(2)]
    args = torch.tensor([1, 2]), torch.tensor([0, 1, 2])
    collection(*args).sum().backward()
    np.testing.assert_array_equal(collection.engine.weight(0), before[0])
    assert not np.array_equal(collection.engine.weight(1), before[1])
    assert [int(collection.engine.counts(table).sum()) for table in range(2)] == [0, 1]
    collection.requires_grad_(False)
    assert not collection(*args).requires_grad
    collection.requires_grad_(True)
    collection(*args).sum().backward()
    assert [int(collection.engine.counts(table).sum()) for table in range(2)] == [1, 2]


def test_frozen_bag_still_gives_the_per_sample_weights_their_gradient() -> None:
    weights = torch.ones(2, 2, requires_grad=True)
    for bag in (fused().requires_grad_(False), fused().eval()):
        before = bag.weight.detach().clone()
        bag(IDS, None, weights).sum().backward()
        assert weights.grad is not None
        torch.testing.assert_close(weights.grad, before.sum(dim=1)[IDS])
        assert changed_rows(bag, before) == []
        weights.grad = None


def test_per_sample_weights_gradient_after_another_update_raises() -> None:
    bag, weights = fused(), torch.ones(2, 2, requires_grad=True)
    out = bag(IDS, None, weights)
    bag(IDS).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_dense_layer_that_saved_the_weight_notices_the_update() -> None:
    bag = fused()
    logits = nn.functional.linear(torch.ones(1, 4, requires_grad=True), bag.weight)
    bag(IDS).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logits.sum().backward()


def test_learning_rate_can_be_scheduled() -> None:
    bag = fused()
    bag.learning_rate = 0.5
    before = bag.weight.detach().clone()
    bag(IDS).sum().backward()
    assert torch.equal(bag.weight[1], before[1] - 0.5)
    with pytest.raises(ValueError, match="learning_rate"):
        bag.learning_rate = -1.0


def test_distributed_needs_rank_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    bag = fused()
    before = bag.weight.detach().clone()
    with pytest.raises(RuntimeError, match="rank_local=True"):
        bag(IDS).sum().backward()
    assert changed_rows(bag, before) == []
    fused(rank_local=True)(IDS).sum().backward()
    EmbeddingBag(8, 4)(IDS).sum().backward()
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    fused()(IDS).sum().backward()


def test_embedding_steps_too() -> None:
    embedding = Embedding(8, 4, optimizer=RowWiseAdagrad(lr=0.1))
    embedding(torch.tensor([[1, 1], [5, 2]])).sum().backward()
    assert embedding.engine.counts(0).tolist() == [0, 2, 1, 0, 0, 1, 0, 0]
    state = embedding.engine.state(0)
    assert state is not None
    assert state.nonzero()[0].tolist() == [1, 2, 5]


def test_observer_hears_of_every_update_that_was_done() -> None:
    bag, heard = fused(), list[int]()

    def observer(request: Request, frozen: Any) -> Any:
        count = request.ids.numel()
        return lambda: heard.append(count)

    bag.observe_updates(observer)
    bag(IDS).sum().backward()
    bag(IDS[:1]).mul(float("inf")).sum().backward()
    with torch.no_grad():
        bag(IDS)
    bag.eval()(IDS)
    bag.train().observe_updates(None)
    bag(IDS).sum().backward()
    assert heard == [4]
