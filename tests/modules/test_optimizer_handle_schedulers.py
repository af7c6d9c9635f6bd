"""Every scheduler of torch on the fused optimizer, beside torch's own optimizer with the same schedule."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from cpr_native import SGD, Adagrad, Adam, EmbeddingBag
from cpr_native.optim import FusedOptimizer

STEPS = 12
ROWS, DIM = 9, 5

OWN: dict[str, FusedOptimizer] = {
    "sgd": SGD(lr=0.1, weight_decay=0.01),
    "adagrad": Adagrad(lr=0.1),
    "adam": Adam(lr=0.1, betas=(0.8, 0.99)),
}
TORCH: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.01),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1, betas=(0.8, 0.99)),
}


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    cycles = "betas" in optimizer.defaults
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS, cycle_momentum=cycles)


def cyclic(optimizer: torch.optim.Optimizer) -> Any:
    cycles = "betas" in optimizer.defaults
    return lr_scheduler.CyclicLR(optimizer, 0.01, 0.3, step_size_up=3, cycle_momentum=cycles)


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    return lr_scheduler.SequentialLR(
        optimizer, [warm_up, lr_scheduler.ExponentialLR(optimizer, 0.8)], milestones=[4]
    )


def chained(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.3, 3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 5)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 7], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=6),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "SequentialLR": sequential,
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=5),
    "ChainedScheduler": chained,
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5, threshold=0.5),
    "CyclicLR": cyclic,
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "OneCycleLR": one_cycle,
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=10, power=2.0),
}


def train(bag: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> list[tuple[Any, ...]]:
    """The hyperparameters of every step; each batch has all rows."""
    generator = torch.Generator().manual_seed(4)
    history = []
    for _ in range(STEPS):
        ids = torch.randperm(ROWS, generator=generator).view(3, 3)
        optimizer.zero_grad()
        history.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0].get("betas")))
        loss = (bag(ids) - torch.rand(3, DIM, generator=generator)).square().sum()
        loss.backward()
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0)
        else:
            scheduler.step()
    return history


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedule_equals_torchs(name: str, kind: str) -> None:
    weight = torch.rand(ROWS, DIM, generator=torch.Generator().manual_seed(2))
    theirs = torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum")
    own = EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum", optimizer=OWN[kind])
    optimizer = TORCH[kind](theirs.parameters())
    expected = train(theirs, optimizer, SCHEDULERS[name](optimizer))
    handle = own.fused_optimizer
    assert train(own, handle, SCHEDULERS[name](handle)) == expected
    assert len({rate for rate, _ in expected}) > 1
    assert own.learning_rate == handle.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    torch.testing.assert_close(own.weight, theirs.weight, rtol=2e-5, atol=2e-6)


def test_no_scheduler_of_torch_is_left_out() -> None:
    kinds = {
        name
        for name, value in vars(lr_scheduler).items()
        if isinstance(value, type)
        and value.__module__ == lr_scheduler.__name__
        and hasattr(value, "step")
        and not name.startswith("_")
    }
    assert kinds - {"LRScheduler"} == set(SCHEDULERS)


@pytest.mark.parametrize("kind", OWN)
def test_momentum_cycles_only_where_torch_cycles_it(kind: str) -> None:
    own = EmbeddingBag(3, 2, optimizer=OWN[kind])
    if kind == "adam":
        lr_scheduler.OneCycleLR(own.fused_optimizer, max_lr=0.5, total_steps=5)
        assert own.fused_optimizer.param_groups[0]["betas"] == (0.95, 0.99)
    else:
        with pytest.raises(ValueError, match="momentum"):
            lr_scheduler.OneCycleLR(own.fused_optimizer, max_lr=0.5, total_steps=5)


def test_backward_counts_as_the_step_that_schedulers_wait_for() -> None:
    own = EmbeddingBag(3, 2, optimizer=SGD(lr=0.1))
    scheduler = lr_scheduler.StepLR(own.fused_optimizer, 1)
    own(torch.tensor([[0]])).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    idle = EmbeddingBag(3, 2, optimizer=SGD(lr=0.1))
    scheduler = lr_scheduler.StepLR(idle.fused_optimizer, 1)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()


def test_a_compiled_model_follows_the_schedule() -> None:
    own = EmbeddingBag.from_pretrained(torch.zeros(2, 1), freeze=False, mode="sum", optimizer=SGD(lr=1.0))
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    scheduler = lr_scheduler.LambdaLR(own.fused_optimizer, lambda step: 0.5**step)
    for _ in range(4):
        compiled(torch.tensor([[1]])).sum().backward()
        scheduler.step()
    assert own.weight[1].item() == -(1.0 + 0.5 + 0.25 + 0.125)
