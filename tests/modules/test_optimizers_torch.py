"""The fused optimizers beside torch's own, on the same losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cpr_native import SGD, Adagrad, Adam, EmbeddingBag, RowWiseAdagrad
from cpr_native.optim import FusedOptimizer

ROWS, DIM, STEPS = 12, 7, 25
Make = Callable[[Any], torch.optim.Optimizer]

ALL_ROWS: dict[str, tuple[FusedOptimizer, Make]] = {
    "sgd": (SGD(lr=0.1), lambda w: torch.optim.SGD(w, lr=0.1)),
    "sgd_decay": (SGD(lr=0.1, weight_decay=0.2), lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.2)),
    "adagrad": (Adagrad(lr=0.1), lambda w: torch.optim.Adagrad(w, lr=0.1)),
    "adagrad_settings": (
        Adagrad(lr=0.1, eps=1e-3, initial_accumulator=0.5, weight_decay=0.2),
        lambda w: torch.optim.Adagrad(w, lr=0.1, eps=1e-3, initial_accumulator_value=0.5, weight_decay=0.2),
    ),
    "adam": (Adam(lr=0.02), lambda w: torch.optim.Adam(w, lr=0.02)),
    "adam_settings": (
        Adam(lr=0.02, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.2),
        lambda w: torch.optim.Adam(w, lr=0.02, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.2),
    ),
}
SOME_ROWS: dict[str, tuple[FusedOptimizer, Make]] = {
    "sgd": ALL_ROWS["sgd"],
    "adagrad": ALL_ROWS["adagrad"],
    "sparse_adam": (
        Adam(lr=0.02, betas=(0.7, 0.9)),
        lambda w: torch.optim.SparseAdam(w, lr=0.02, betas=(0.7, 0.9)),
    ),
}


def train(own: EmbeddingBag, theirs: torch.nn.EmbeddingBag, make: Make, *, every_row: bool) -> None:
    """Steps of both on the same bags; some ids are in several bags."""
    optimizer = make(list(theirs.parameters()))
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        more = torch.randint(0, ROWS, (6,), generator=generator)
        ids = torch.cat([torch.randperm(ROWS, generator=generator), more]) if every_row else more
        ids = ids.view(-1, 3)
        target = torch.rand(len(ids), DIM, generator=generator)
        for bag in (own, theirs):
            optimizer.zero_grad()
            (bag(ids) - target).square().sum().backward()
            if bag is theirs:
                optimizer.step()


def both(optimizer: FusedOptimizer, *, sparse: bool) -> tuple[EmbeddingBag, torch.nn.EmbeddingBag]:
    theirs = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse)
    weight = theirs.weight.detach().clone()
    return EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", optimizer=optimizer), theirs


@pytest.mark.parametrize("name", ALL_ROWS)
def test_equals_torchs_where_a_batch_has_all_rows(name: str) -> None:
    settings, make = ALL_ROWS[name]
    own, theirs = both(settings, sparse=False)
    train(own, theirs, make, every_row=True)
    torch.testing.assert_close(own.weight, theirs.weight, rtol=1e-4, atol=1e-5)


# torch.optim.Adagrad makes sparse tensors without saying whether they are to be checked.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("name", SOME_ROWS)
def test_equals_torchs_sparse_step_on_some_rows(name: str) -> None:
    settings, make = SOME_ROWS[name]
    own, theirs = both(settings, sparse=True)
    train(own, theirs, make, every_row=False)
    torch.testing.assert_close(own.weight, theirs.weight, rtol=1e-4, atol=1e-5)


def test_rows_outside_the_batch_neither_move_nor_decay() -> None:
    for settings in (SGD(lr=0.1, weight_decay=0.5), Adam(lr=0.1, weight_decay=0.5)):
        own, _ = both(settings, sparse=False)
        own(torch.tensor([[1, 2, 3]])).sum().backward()
        before = own.weight.detach().clone()
        own(torch.tensor([[4, 5, 6]])).sum().backward()
        assert torch.equal(own.weight[1:4], before[1:4])
        assert torch.equal(own.weight[7:], before[7:])
        assert not torch.equal(own.weight[4:7], before[4:7])


def test_row_wise_adagrad_is_fbgemms() -> None:
    """One row, worked by hand: a = mean(g^2)."""
    own, _ = both(RowWiseAdagrad(lr=0.5, eps=1e-6, weight_decay=0.1), sparse=False)
    before = own.weight[3].detach().clone()
    gradient = torch.linspace(-1, 2, DIM)
    own(torch.tensor([[3]])).backward(gradient[None])
    g = gradient + 0.1 * before
    expected = before - 0.5 / (g.square().mean().sqrt() + 1e-6) * g
    torch.testing.assert_close(own.weight[3], expected)
