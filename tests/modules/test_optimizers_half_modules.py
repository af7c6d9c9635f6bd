"""Half-precision modules: float32 state, and the course of a float32 run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_cases import OPTIMIZERS

from cpr_native import SGD, Adagrad, Adam, EmbeddingBag
from cpr_native.optim import FusedOptimizer

ROWS, DIM, STEPS = 12, 7, 25
each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def step(bag: torch.nn.Module, generator: torch.Generator) -> None:
    ids = torch.randperm(ROWS, generator=generator).view(-1, 3)
    target = torch.rand(len(ids), DIM, generator=generator)
    (bag(ids).float() - target).square().sum().backward()


@each_dtype
@pytest.mark.parametrize(
    ("own", "make"),
    [
        (SGD(lr=0.1), lambda w: torch.optim.SGD(w, lr=0.1)),
        (Adagrad(lr=0.1), lambda w: torch.optim.Adagrad(w, lr=0.1)),
        (Adam(lr=0.02), lambda w: torch.optim.Adam(w, lr=0.02)),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_follows_torchs_run_in_float32(
    own: FusedOptimizer, make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum")
    weight = theirs.weight.detach().to(dtype)
    with torch.no_grad():
        theirs.weight.copy_(weight)
    mine = EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum", optimizer=own)
    assert mine.weight.dtype == dtype
    optimizer = make(theirs.parameters())
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(theirs, generators[0])
        optimizer.step()
        step(mine, generators[1])
    error = (mine.weight.float() - theirs.weight).abs().mean()
    moved = (weight.float() - theirs.weight).abs().mean()
    assert error < {torch.float16: 0.01, torch.bfloat16: 0.05}[dtype] < moved


@each_dtype
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)
def test_state_dict_keeps_float32_state_and_continues_bit_equal(
    optimizer: FusedOptimizer, dtype: torch.dtype
) -> None:
    def bag() -> EmbeddingBag:
        torch.manual_seed(1)
        return EmbeddingBag(ROWS, DIM, mode="sum", dtype=dtype, optimizer=optimizer)

    first, second, generator = bag(), bag(), torch.Generator().manual_seed(3)
    for _ in range(3):
        step(first, generator)
    state = first.fused_optimizer.state_dict()
    kinds = {value.dtype for value in state["state"][0].values()}
    assert kinds == {torch.float32}
    second.load_state_dict(first.state_dict())
    second.fused_optimizer.load_state_dict(state)
    assert torch.equal(first.weight, second.weight)
    other = torch.Generator()
    other.set_state(generator.get_state())
    for _ in range(3):
        step(first, generator)
        step(second, other)
    assert torch.equal(first.weight, second.weight)
