"""Lookups count if and only if an update follows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cpr_native import Trackers
from cpr_native.attachment import Attachment, attach
from cpr_native.modules import Request

ROWS, DIM = 12, 3
IDS = torch.tensor([[1, 2], [2, 5]])


def attached(model: nn.Module, **options: float) -> tuple[Attachment, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    attachment = attach(model, optimizer=optimizer)
    attachment.engine.clear_trackers(0, 0, ROWS, dirty=True)
    return attachment, optimizer


def counts(attachment: Attachment) -> dict[int, int]:
    values = attachment.engine.counts(0)
    return {int(row): int(values[row]) for row in values.nonzero()[0]}


def test_v8_no_grad_eval_and_forward_alone_change_nothing() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    with torch.no_grad():
        model(IDS)
    with torch.inference_mode():
        model(IDS)
    model(IDS)
    model.eval()(IDS)
    optimizer.step()
    assert counts(attachment) == {}
    assert attachment.engine.num_dirty(0) == 0


def test_an_update_in_eval_mode_counts_for_torch_makes_it() -> None:
    model = nn.Embedding(ROWS, DIM).eval()
    attachment, optimizer = attached(model)
    model(IDS).sum().backward()
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}


def test_counts_wait_for_the_step() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    model(IDS).sum().backward()
    assert counts(attachment) == {}
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}, "the same gradient is no second lookup"


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_lookups_whose_gradient_was_dropped_do_not_count(set_to_none: bool, sparse: bool) -> None:
    model = nn.Embedding(ROWS, DIM, sparse=sparse)
    attachment, optimizer = attached(model)
    for ids in (IDS, torch.tensor([7])):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(ids).sum().backward()
    optimizer.step()
    assert counts(attachment) == {7: 1}


def test_accumulated_backwards_count_together() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    for ids in (IDS, IDS.to(torch.int32)):
        model(ids).sum().backward()
    optimizer.step()
    assert counts(attachment) == {1: 2, 2: 4, 5: 2}
    assert attachment.engine.step == 1


def test_ids_may_be_overwritten_after_the_backward() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    ids = IDS.clone()
    model(ids).sum().backward()
    ids.fill_(9)
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}


def test_keyword_ids_padding_and_trailing_ids() -> None:
    model = nn.EmbeddingBag(ROWS, DIM, padding_idx=2, include_last_offset=True, mode="sum")
    attachment, optimizer = attached(model)
    model(input=torch.tensor([1, 2, 2, 5]), offsets=torch.tensor([0, 1, 4])).sum().backward()
    optimizer.step()
    assert counts(attachment) == {1: 1, 5: 1}
    assert list(attachment.engine.dirty(0).nonzero()[0]) == [1, 5]


def test_frozen_table_is_not_tracked_until_thawed() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))
    attachment, optimizer = attached(model)
    model[0].requires_grad_(False)
    for expected in ({}, {1: 1, 2: 2, 5: 1}):
        optimizer.zero_grad()
        model(IDS).sum().backward()
        optimizer.step()
        assert counts(attachment) == expected
        model[0].requires_grad_(True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_counts_once(use_reentrant: bool) -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))
    attachment, optimizer = attached(model)
    start = torch.zeros((), requires_grad=True)
    out = checkpoint(lambda zero: model(IDS) + zero, start, use_reentrant=use_reentrant)
    out.sum().backward()
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}


def test_gradients_taken_without_accumulating_do_not_count() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    torch.autograd.grad(model(torch.tensor([7])).sum(), [model.weight])
    model(IDS).sum().backward()
    optimizer.step()
    assert counts(attachment) == {1: 1, 2: 2, 5: 1}


def test_step_inside_backward() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(_weight: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    model.weight.register_post_accumulate_grad_hook(update)
    attachment = attach(model, optimizer=optimizer)
    attachment.engine.clear_trackers(0, 0, ROWS, dirty=True)
    for times in (1, 2):
        model(IDS).sum().backward()
        assert counts(attachment) == {1: times, 2: 2 * times, 5: times}
    assert list(attachment.engine.dirty(0).nonzero()[0]) == [1, 2, 5]


def test_other_weights_of_a_functional_call_are_not_the_table() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)
    other = torch.zeros(ROWS, DIM, requires_grad=True)
    torch.func.functional_call(model, {"weight": other}, (IDS,)).sum().backward()
    optimizer.step()
    assert counts(attachment) == {}


def test_several_optimizers_settle_their_own_tables() -> None:
    model = nn.ModuleList([nn.Embedding(ROWS, DIM, sparse=True), nn.Embedding(ROWS, DIM)])
    first = torch.optim.SparseAdam(list(model[0].parameters()))
    second = torch.optim.Adagrad(model[1].parameters())
    attachment = attach(model, optimizer=[first, second])
    (model[0](IDS) + model[1](IDS)).sum().backward()
    first.step()
    assert [int(attachment.engine.counts(table).sum()) for table in (0, 1)] == [4, 0]
    second.step()
    assert [int(attachment.engine.counts(table).sum()) for table in (0, 1)] == [4, 4]
    assert attachment.optimizers == (first, second)


def test_v9_memory_does_not_grow_with_the_steps() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment, optimizer = attached(model)

    def held() -> int:
        gc.collect()
        return sum(type(each) in (torch.Tensor, nn.Parameter) for each in gc.get_objects())

    sizes = []
    for number in range(361):
        if number % 120 == 0:
            sizes.append((held(), attachment.memory()))
        model(IDS).sum().backward()
        if number % 3:
            optimizer.step()
        optimizer.zero_grad()
    assert sizes[1] == sizes[2] == sizes[3]


def test_sampled_rows_differ_from_step_to_step() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer, trackers=Trackers(ssu_fraction=1.0, ssu_period=8))
    for _ in range(40):
        model(torch.arange(ROWS)).sum().backward()
        optimizer.step()
    assert len(attachment.engine.sampled_rows(0)) > ROWS // 2
    assert attachment.engine.step == 40


def test_observer_hears_of_what_the_counters_got() -> None:
    model = nn.ModuleList([nn.Embedding(ROWS, DIM), nn.Embedding(ROWS, DIM)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    seen: list[tuple[list[int], list[int]]] = []

    def observer(request: Request, frozen: Sequence[int]) -> Callable[[], None]:
        assert request.offsets is not None
        assert list(frozen) == []
        return lambda: seen.append((request.ids.tolist(), request.offsets.tolist()))  # type: ignore[union-attr]

    attachment.observe_updates(observer)
    model[1](IDS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    (model[0](torch.tensor([3])) + model[1](IDS)).sum().backward()
    optimizer.step()
    attachment.observe_updates(None)
    model[1](IDS).sum().backward()
    optimizer.step()
    assert seen == [([1, 2, 2, 5], [0, 0, 4]), ([3, 1, 2, 2, 5], [0, 1, 5])]


def test_compiled_model_counts_as_eager() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Linear(DIM, 1))
    attachment, optimizer = attached(model)
    compiled = torch.compile(model, backend="aot_eager")
    for times in (1, 2):
        optimizer.zero_grad()
        compiled(IDS).sum().backward()
        optimizer.step()
        assert counts(attachment) == {1: times, 2: 2 * times, 5: times}
    assert list(attachment.engine.dirty(0).nonzero()[0]) == [1, 2, 5]
