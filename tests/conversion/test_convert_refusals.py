"""What can't be converted is refused by name, and then nothing of the model has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from cpr_native import SGD, Embedding, Trackers, convert


class Scaled(nn.Embedding):
    """As in transformers: not what nn.Embedding computes."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2.0


def with_forward() -> nn.Module:
    module = nn.Embedding(4, 2)
    module.forward = lambda input: input  # type: ignore[method-assign]
    return module


def with_attribute() -> nn.Module:
    module = nn.Embedding(4, 2)
    module.learning_rate = 0.1
    return module


def parametrized() -> nn.Module:
    module = nn.Embedding(4, 2)
    parametrize.register_parametrization(module, "weight", nn.Identity())
    return module


def with_weight(weight: Tensor, *, parameter: bool = True) -> nn.Module:
    module = nn.Embedding(4, 2)
    del module.weight
    module.weight = nn.Parameter(weight, requires_grad=weight.is_floating_point()) if parameter else weight
    return module


def unusable() -> list[Any]:
    return [
        (Scaled(4, 2), ValueError, r"Scaled.*skip=\['second'\]"),
        (torch.jit.script(nn.Embedding(4, 2)), ValueError, "scripted Embedding"),
        (parametrized(), ValueError, "ParametrizedEmbedding"),
        (prune.identity(nn.Embedding(4, 2), "weight"), ValueError, "plain Parameter, got NoneType"),
        (with_forward(), ValueError, "forward"),
        (with_attribute(), ValueError, "learning_rate"),
        (nn.Embedding(4, 2, device="meta"), ValueError, "meta"),
        (with_weight(torch.zeros(2, 4).t()), ValueError, "contiguous"),
        (with_weight(torch.zeros(5, 2)), ValueError, r"expected shape \(4, 2\), got \(5, 2\)"),
        (with_weight(torch.zeros(4, 2, dtype=torch.int64)), TypeError, "int64"),
        (with_weight(torch.zeros(4, 2), parameter=False), ValueError, "plain Parameter"),
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_unusable_modules_are_named_and_nothing_has_changed() -> None:
    for second, error, message in unusable():
        first = nn.EmbeddingBag(5, 3)
        model = nn.ModuleDict({"first": first, "second": second})
        before = (dict(first.__dict__), type(second), set(second.__dict__))
        with pytest.raises(error, match=message) as caught:
            convert(model, optimizer=SGD(lr=0.1))
        assert "second" in str(caught.value)
        assert type(first) is nn.EmbeddingBag
        assert (dict(first.__dict__), type(second), set(second.__dict__)) == before
        assert convert(model, skip=["second"]) is model
        assert type(first) is not nn.EmbeddingBag
        assert type(model["second"]) is before[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"skip": ["third"]}, ValueError, "no module 'third'"),
        ({"skip": ["first"]}, ValueError, "found none"),
        ({"trackers": {"second": Trackers()}}, ValueError, r"second, expected some of \['first'\]"),
        ({"optimizer": torch.optim.SGD}, TypeError, "optimizer"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    model = nn.ModuleDict({"first": nn.Embedding(5, 3), "second": nn.Linear(2, 2)})
    with pytest.raises(error, match=message):
        convert(model, **options)
    assert type(model["first"]) is nn.Embedding


def test_model_without_embeddings() -> None:
    with pytest.raises(ValueError, match="found none"):
        convert(nn.Linear(2, 2))
    assert isinstance(convert(nn.Sequential(Embedding(2, 2))), nn.Sequential)
