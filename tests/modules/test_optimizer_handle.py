"""The fused optimizer in the shape of torch's: group, learning rate, copies, AMP."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_cases import collection, rows_of, same, step

from cpr_native import SGD, Adam, EmbeddingBag, RowWiseAdagrad
from cpr_native.modules import EmbeddingFusedOptimizer


def test_is_an_optimizer_with_torchs_group() -> None:
    module = collection(Adam(lr=0.1, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.5))
    handle = module.fused_optimizer
    assert isinstance(handle, EmbeddingFusedOptimizer)
    assert isinstance(handle, torch.optim.Optimizer)
    assert handle is module.fused_optimizer
    (group,) = handle.param_groups
    assert all(weight is own for weight, own in zip(group["params"], module.parameters(), strict=True))
    values = {key: value for key, value in group.items() if key != "params"}
    assert values == {"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.5}
    assert "lr: 0.1" in repr(handle)


def test_there_is_none_without_a_fused_optimizer() -> None:
    module = collection(None)
    with pytest.raises(ValueError, match="optimizer=None"):
        _ = module.fused_optimizer
    assert module.learning_rate == 0.0
    with pytest.raises(ValueError, match="learning_rate"):
        module.learning_rate = 0.1


def test_learning_rate_has_one_source() -> None:
    module = collection(SGD(lr=0.1))
    handle = module.fused_optimizer
    assert module.learning_rate == 0.1
    handle.param_groups[0]["lr"] = 0.3
    assert module.learning_rate == 0.3
    module.learning_rate = 0.7
    assert handle.param_groups[0]["lr"] == 0.7
    assert module.engine.learning_rate == np.float32(0.7)


@pytest.mark.parametrize("how", ["assigned", "filled", "new_group"])
def test_the_next_backward_has_the_value_whatever_wrote_it(how: str) -> None:
    module = EmbeddingBag.from_pretrained(torch.zeros(2, 1), freeze=False, mode="sum", optimizer=SGD(lr=1.0))
    handle = module.fused_optimizer
    rate = torch.tensor(2.0)
    handle.param_groups[0]["lr"] = rate
    out = module(torch.tensor([[0]]))
    if how == "assigned":
        handle.param_groups[0]["lr"] = 3.0
    elif how == "filled":
        rate.fill_(3.0)
    else:
        handle.param_groups[0] = {**handle.param_groups[0], "lr": 3.0}
    out.sum().backward()
    assert module.weight[0].item() == -3.0


@pytest.mark.parametrize(
    ("key", "value"), [("lr", float("nan")), ("lr", -1.0), ("eps", 0.0), ("betas", (0.5, 1.0))]
)
def test_a_value_out_of_range_is_refused_before_a_row_changes(key: str, value: Any) -> None:
    module = collection(Adam(lr=0.1))
    step(module, 0)
    before, kept = rows_of(module), module.fused_optimizer.param_groups[0][key]
    generator = torch.Generator().manual_seed(1)
    out = module(torch.randint(0, 7, (12,), generator=generator), torch.arange(13))
    module.fused_optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError, match=key):
        out.sum().backward()
    assert pickle.dumps(rows_of(module)) == pickle.dumps(before)
    module.fused_optimizer.param_groups[0][key] = kept
    out.sum().backward()


def test_step_and_zero_grad_change_nothing() -> None:
    module = collection(RowWiseAdagrad(lr=0.1))
    step(module, 0)
    before, handle = rows_of(module), module.fused_optimizer
    handle.zero_grad()
    handle.zero_grad(set_to_none=False)
    assert handle.step() is None
    assert pickle.dumps(rows_of(module)) == pickle.dumps(before)
    assert handle.step(lambda: 5) == 5
    assert module.engine.step == 1


def test_a_second_group_is_refused() -> None:
    handle = collection(SGD(lr=0.1)).fused_optimizer
    with pytest.raises(NotImplementedError, match="one parameter group"):
        handle.add_param_group({"params": [torch.zeros(1)]})


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_module_optimizer_and_scheduler_are_copied_together(duplicate: Any) -> None:
    module = collection(RowWiseAdagrad(lr=0.1))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(module.fused_optimizer, T_max=7)
    step(module, 0)
    scheduler.step()
    twin, handle, twins = duplicate((module, module.fused_optimizer, scheduler))
    assert handle is twin.fused_optimizer
    assert twins.optimizer is handle
    for number in range(1, 5):
        step(module, number)
        scheduler.step()
    assert not same(module, twin)
    for number in range(1, 5):
        step(twin, number)
        twins.step()
    assert same(module, twin)
    assert twin.learning_rate == module.learning_rate


def test_parameters_are_those_of_the_module_now() -> None:
    module = EmbeddingBag(4, 2, optimizer=SGD(lr=0.1))
    _ = module.fused_optimizer
    module.weight = torch.nn.Parameter(torch.ones(4, 2))
    assert module.fused_optimizer.param_groups[0]["params"][0] is module.weight


def test_the_optimizer_does_not_keep_its_module_alive() -> None:
    module = EmbeddingBag(4, 2, optimizer=SGD(lr=0.1))
    handle, gone = module.fused_optimizer, weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()
    with pytest.raises(ReferenceError, match="module"):
        pickle.dumps(handle)


def test_grad_scaler_steps_it_as_any_optimizer() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    module, head = collection(SGD(lr=0.1)), torch.nn.Linear(15, 1)
    plain, plain_head = copy.deepcopy(module), copy.deepcopy(head)
    dense = torch.optim.SGD(head.parameters(), lr=0.1)
    ids = torch.arange(12) % 7
    module.grad_scale = 1.0 / scaler.get_scale()
    scaler.scale(head(module(ids, torch.arange(13))).sum()).backward()
    scaler.step(dense)
    scaler.step(module.fused_optimizer)
    scaler.update()
    plain_head(plain(ids, torch.arange(13))).sum().backward()
    assert same(module, plain)
