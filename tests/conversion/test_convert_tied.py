"""Weights that several modules hold: they stay tied, or are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, EmbeddingBag, convert

IDS = torch.tensor([1, 4, 1])


class Language(nn.Module):
    """The output layer's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 3)
        self.out = nn.Linear(3, 6, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.words(ids))
        return out


class Towers(nn.Module):
    """Two embedding modules of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(6, 3, mode="sum")
        self.second = nn.Embedding(6, 3)
        self.second.weight = self.first.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.first(ids.unsqueeze(1)) * self.second(ids.flip(0) // 2)
        return out


@pytest.mark.parametrize("kind", [Language, Towers])
def test_tied_weights_train_as_torchs(kind: Any) -> None:
    torch.manual_seed(3)
    ours = kind()
    theirs = copy.deepcopy(ours)
    convert(ours)
    assert len(list(ours.parameters())) == 1
    for module in (ours, theirs):
        optimizer = torch.optim.Adagrad(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(IDS).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()))


def test_each_engine_marks_what_the_other_module_changes() -> None:
    towers = convert(Towers())
    engines = [towers.first.engine, towers.second.engine]
    for engine in engines:
        engine.clear_trackers(0, 0, 6, dirty=True)
    optimizer = torch.optim.SGD(towers.parameters(), lr=0.1)
    towers(torch.tensor([5, 5])).sum().backward()
    optimizer.step()
    assert [engine.dirty(0).nonzero()[0].tolist() for engine in engines] == [[2, 5], [2, 5]]


def test_tied_to_a_dense_layer_marks_every_row_it_changes() -> None:
    language = convert(Language())
    language.words.engine.clear_trackers(0, 0, 6, dirty=True)
    optimizer = torch.optim.SGD(language.parameters(), lr=0.1)
    language(IDS).square().sum().backward()
    optimizer.step()
    assert language.words.engine.dirty(0).all()


@pytest.mark.parametrize("kind", [Language, Towers])
def test_tied_weights_and_a_fused_optimizer_are_refused(kind: Any) -> None:
    model = kind()
    classes = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=r"weight.*tied weights"):
        convert(model, optimizer=SGD(lr=0.1))
    assert [type(module) for module in model.modules()] == classes


def test_tied_to_a_table_with_a_fused_optimizer_is_refused() -> None:
    towers = Towers()
    fused = EmbeddingBag(6, 3, _weight=towers.second.weight, optimizer=SGD(lr=0.1))
    fused.weight = towers.second.weight
    towers.first = fused
    with pytest.raises(ValueError, match=r"second.weight'.*first.weight"):
        convert(towers)


def test_two_parameters_in_one_memory_are_refused() -> None:
    towers = Towers()
    towers.second.weight = nn.Parameter(towers.first.weight.data[:6])
    with pytest.raises(ValueError, match=r"first.weight'.*memory of its own.*second.weight"):
        convert(towers)
    neighbours = Towers()
    both = torch.randn(12, 3)
    neighbours.first.weight, neighbours.second.weight = (nn.Parameter(half) for half in both.split(6))
    convert(neighbours)
