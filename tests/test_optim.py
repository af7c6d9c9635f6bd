"""Settings of the fused optimizers: defaults of torch and FBGEMM, and what is out of range."""

from __future__ import annotations

import math
import re
from typing import Any, get_args

import pytest
import torch

from cpr_native import SGD, Adagrad, Adam, PartialRowWiseAdam, RowWiseAdagrad
from cpr_native.optim import FusedOptimizer

KINDS = get_args(FusedOptimizer)


@pytest.mark.parametrize(
    ("kind", "theirs", "names"),
    [
        (SGD, torch.optim.SGD, {"weight_decay": "weight_decay"}),
        (
            Adagrad,
            torch.optim.Adagrad,
            {
                "eps": "eps",
                "weight_decay": "weight_decay",
                "initial_accumulator": "initial_accumulator_value",
            },
        ),
        (Adam, torch.optim.Adam, {"betas": "betas", "eps": "eps", "weight_decay": "weight_decay"}),
    ],
)
def test_defaults_are_torchs(kind: Any, theirs: Any, names: dict[str, str]) -> None:
    defaults = theirs([torch.zeros(1)], lr=0.1).defaults
    settings = kind(lr=0.1)
    assert {name: getattr(settings, name) for name in names} == {n: defaults[t] for n, t in names.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_those_of_the_engine(kind: Any) -> None:
    assert kind.name in ("sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam")
    assert kind(lr=0.5) == kind(lr=0.5)
    assert "name" not in repr(kind(lr=0.5))


def test_settings_of_two_kinds_are_never_equal() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert RowWiseAdagrad(lr=0.1, eps=1e-10) != Adagrad(lr=0.1, eps=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, -math.inf, 1e39])
def test_learning_rate_and_decay_are_finite_and_not_negative(kind: Any, bad: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"lr: expected a finite number >= 0, got {bad}")):
        kind(lr=bad)
    with pytest.raises(ValueError, match=r"^weight_decay: expected"):
        kind(lr=0.1, weight_decay=bad)
    assert kind(lr=0.0, weight_decay=0.0).lr == 0.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SGD])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-46])
def test_eps_is_above_0_in_float32(kind: Any, bad: float) -> None:
    with pytest.raises(ValueError, match=r"^eps: expected a finite number > 0"):
        kind(lr=0.1, eps=bad)
    assert kind(lr=0.1, eps=2.0**-149).eps > 0


@pytest.mark.parametrize("kind", [Adagrad, RowWiseAdagrad])
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_initial_accumulator_is_finite_and_not_negative(kind: Any, bad: float) -> None:
    with pytest.raises(ValueError, match=r"^initial_accumulator"):
        kind(lr=0.1, initial_accumulator=bad)


@pytest.mark.parametrize("kind", [Adam, PartialRowWiseAdam])
@pytest.mark.parametrize(
    "bad", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (math.nan, 0.9), (0.1, 0.2, 0.3), (0.9, 1.0 - 1e-9)]
)
def test_betas_are_two_numbers_below_1_in_float32(kind: Any, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^betas: expected two numbers in \[0, 1\)"):
        kind(lr=0.1, betas=bad)
    assert kind(lr=0.1, betas=[0.0, 0.5]).betas == (0.0, 0.5)
