"""Mixed precision: `grad_scale` with `torch.amp.GradScaler`, and `torch.autocast`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, EmbeddingBag, RowWiseAdagrad

ROWS, DIM = 12, 4
BATCHES = [torch.tensor([[1, 2], [2, 5]]), torch.tensor([[5, 7]]), torch.tensor([[2, 2], [0, 1]])]


def model(optimizer: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(EmbeddingBag(ROWS, DIM, mode="sum", optimizer=optimizer), nn.Linear(DIM, 1))


def dense(module: nn.Sequential) -> torch.optim.Optimizer:
    return torch.optim.SGD(module[1].parameters(), lr=0.1)


def scaled_step(module: nn.Sequential, scaler: torch.amp.GradScaler, optimizer: Any, loss: Tensor) -> None:
    """One step of the recipe in docs/drop-in.md."""
    module[0].grad_scale = 1.0 / scaler.get_scale()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("optimizer", [SGD(lr=0.5), RowWiseAdagrad(lr=0.5)])
def test_grad_scaler_trains_as_without_it(optimizer: Any) -> None:
    scaled, plain = model(optimizer), model(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    optimizers = dense(scaled), dense(plain)
    for ids in BATCHES:
        scaled_step(scaled, scaler, optimizers[0], scaled(ids).pow(2).sum())
        plain(ids).pow(2).sum().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert scaler.get_scale() == 2.0**11
    # Powers of two: not one bit differs.
    for name, parameter in scaled.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name))


def test_an_overflowing_step_is_skipped_whole() -> None:
    module = model(SGD(lr=0.5))
    before = copy.deepcopy(module)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scaled_step(module, scaler, dense(module), module(BATCHES[0]).pow(2).sum() * 1e3)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before.get_parameter(name))
    assert module[0].skipped_steps == 1
    assert module[0].engine.step == 0
    assert not module[0].engine.counts(0).any()
    assert scaler.get_scale() == 2.0**126


@pytest.mark.parametrize("optimizer", [SGD(lr=0.5), None])
def test_autocast_leaves_the_lookup_in_float32(optimizer: Any) -> None:
    cast, plain = model(optimizer), model(optimizer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = cast[0](BATCHES[0])
        out = cast[1](rows)
    assert (rows.dtype, out.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(rows, plain[0](BATCHES[0]))
    out.float().sum().backward()
    plain(BATCHES[0]).sum().backward()
    torch.testing.assert_close(cast[0].weight, plain[0].weight, rtol=2e-2, atol=2e-2)
    if optimizer is None:
        torch.testing.assert_close(cast[0].weight.grad, plain[0].weight.grad, rtol=2e-2, atol=2e-2)


def test_autocast_per_sample_weights() -> None:
    bag = EmbeddingBag(ROWS, DIM, mode="sum")
    weights = torch.rand(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = bag(BATCHES[0], None, weights)
    out.sum().backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, bag.weight.detach().sum(dim=1)[BATCHES[0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_table_with_grad_scaler(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    bag = EmbeddingBag(ROWS, DIM, mode="sum", optimizer=SGD(lr=0.5), dtype=dtype)
    before = bag.weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    bag.grad_scale = 1.0 / scaler.get_scale()
    scaler.scale(bag(BATCHES[0]).float().sum()).backward()
    moved = torch.zeros(ROWS, DIM).index_add_(0, BATCHES[0].reshape(-1), torch.full((4, DIM), -0.5))
    torch.testing.assert_close(bag.weight.float(), before.float() + moved, rtol=1e-2, atol=1e-2)
