"""Attached models are copied, changed, detached and dropped."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from attachment.attach_cases import DIM, IDS, ROWS, Nested, clean, dirty_rows, global_hooks, train
from torch import nn

import cpr_native
from cpr_native.attachment import attach, attachments_of
from cpr_native.errors import CprError


def test_attached_twice_raises_until_detached() -> None:
    model = Nested()
    attachment = attach(model)
    for part in (model, model.tower):
        with pytest.raises(ValueError, match="attached already"):
            attach(part)
    attachment.detach()
    attachment.detach()
    assert attach(model).attached


def test_convert_refuses_an_attached_model() -> None:
    model = Nested()
    attachment = attach(model)
    with pytest.raises(ValueError, match="the model is attached"):
        cpr_native.convert(model)
    attachment.detach()
    cpr_native.convert(model)
    with pytest.raises(ValueError, match="has a native engine already"):
        attach(model)


def test_detach_removes_every_hook_and_ends_tracking() -> None:
    model, before = Nested(), global_hooks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, optimizer=optimizer) as attachment:
        train(model, optimizer)
        assert global_hooks() == before + 2
    assert global_hooks() == before
    assert all(not module._forward_hooks for module in model.modules())
    assert all(not module._forward_hooks_with_kwargs for module in model.modules())
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    clean_counts = attachment.engine.counts(0).tolist()
    train(model, optimizer)
    assert attachment.engine.counts(0).tolist() == clean_counts
    with pytest.raises(CprError, match="detached"):
        attachment.sync()


def test_nothing_keeps_the_model_alive() -> None:
    model, before = Nested(), global_hooks()
    optimizer = torch.optim.Adam(model.parameters())
    attachment = attach(model, optimizer=optimizer)
    train(model, optimizer)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    optimizer.step()
    with pytest.raises(ValueError, match="its modules are gone"):
        attachment.sync()
    del attachment
    gc.collect()
    assert global_hooks() == before


def test_the_model_keeps_the_attachment() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attach(model, optimizer=optimizer)
    gc.collect()
    train(model, optimizer)
    assert attachments_of(model)[0].engine.counts(0)[2] == 2


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_v18_copies_of_the_model_are_plain_and_can_be_attached(how: str) -> None:
    model = Nested()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attachment = attach(model, optimizer=optimizer)
    train(model, optimizer)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        other = torch.load(buffer, weights_only=False)
    assert attachments_of(other) == []
    counts = attachment.engine.counts(1).tolist()
    train(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert attachment.engine.counts(1).tolist() == counts
    seen: list[int] = []
    other.bag.register_forward_hook(lambda *arguments: seen.append(len(arguments)))
    with attach(other):
        other(IDS)
    assert seen == [3], "a hook of the copy's gets what it asked for"
    assert not attachments_of(other)
    with pytest.raises(TypeError, match="belongs to its model"):
        copy.copy(attachment)


def test_state_dict_is_the_plain_one() -> None:
    model = Nested()
    keys = list(model.state_dict())
    attach(model)
    assert list(model.state_dict()) == keys
    Nested().load_state_dict(model.state_dict())


def test_parameter_that_moved_or_was_replaced_is_followed() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment = attach(model)
    for change in ("data", "parameter", "assign"):
        clean(attachment)
        if change == "data":
            model.weight.data = torch.randn(ROWS, DIM)
        elif change == "parameter":
            model.weight = nn.Parameter(torch.randn(ROWS, DIM))
        else:
            model.load_state_dict({"weight": torch.randn(ROWS, DIM)}, assign=True)
        attachment.sync()
        assert len(dirty_rows(attachment)) == ROWS
        assert torch.equal(torch.from_numpy(attachment.engine.weight(0)), model.weight)
        clean(attachment)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer)
        assert dirty_rows(attachment) == [1, 2, 5]
        assert attachment.engine.counts(0)[2] == 2
    model.load_state_dict({"weight": torch.zeros(ROWS, DIM)})
    attachment.sync()
    assert len(dirty_rows(attachment)) == ROWS


def test_weight_of_another_dtype_or_untied_is_refused_at_the_next_use() -> None:
    model = nn.Embedding(ROWS, DIM)
    attachment = attach(model)
    model.half()
    with pytest.raises(ValueError, match=r"expected shape \(12, 3\) and float32, got \(12, 3\) and float16"):
        attachment.sync()
    tied = Nested()
    attachment = attach(tied)
    tied.again.weight = nn.Parameter(torch.zeros(30, DIM))
    with pytest.raises(ValueError, match=r"table 'bag'.*don't share their weight any more"):
        attachment.sync()


def test_v4_max_norm_marks_the_rows_it_may_change_even_in_eval() -> None:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(ROWS, DIM, max_norm=0.1, mode="sum").eval()
    attachment = attach(model)
    clean(attachment)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model(IDS)
    changed = (model.weight != before).any(dim=1).nonzero().reshape(-1).tolist()
    attachment.sync()
    assert changed == dirty_rows(attachment) == [1, 2, 5]
    assert attachment.engine.counts(0).sum() == 0


def test_mark_dirty_announces_what_torch_cannot_see() -> None:
    model = Nested()
    attachment = attach(model)
    clean(attachment)
    model.bag.weight.data[4] = 0.0
    attachment.mark_dirty("bag", [4])
    attachment.mark_dirty("bag", torch.tensor([29], dtype=torch.int32))
    assert dirty_rows(attachment, 1) == [4, 29]
    with pytest.raises(IndexError):
        attachment.mark_dirty("bag", [30])
    attachment.mark_dirty("bag")
    assert len(dirty_rows(attachment, 1)) == 30
