from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.data import auc, log_loss


def slow_auc(labels: list[int], scores: list[float]) -> float:
    wins = [
        1.0 if good > bad else 0.5 if good == bad else 0.0
        for good, is_good in zip(scores, labels, strict=True)
        if is_good
        for bad, is_also_good in zip(scores, labels, strict=True)
        if not is_also_good
    ]
    return sum(wins) / len(wins)


samples = st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=2, max_size=40)


@given(samples.filter(lambda pairs: len({label for label, _ in pairs}) == 2))
def test_auc_counts_pairs_and_ties(pairs: list[tuple[int, int]]) -> None:
    labels, scores = [label for label, _ in pairs], [float(score) for _, score in pairs]
    assert auc(labels, scores) == pytest.approx(slow_auc(labels, scores), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(-30, 30)), min_size=1, max_size=20))
def test_log_loss_is_the_mean_of_the_definition(pairs: list[tuple[int, float]]) -> None:
    labels, logits = [label for label, _ in pairs], [logit for _, logit in pairs]
    expected = sum(
        math.log1p(math.exp(-logit)) if label else math.log1p(math.exp(logit)) for label, logit in pairs
    ) / len(pairs)
    assert log_loss(labels, logits) == pytest.approx(expected, rel=1e-12)


def test_metrics_take_tensors_and_large_logits() -> None:
    labels, logits = torch.tensor([1.0, 0.0]), torch.tensor([1000.0, -1000.0])
    assert auc(labels, logits) == 1.0
    assert log_loss(labels, logits) == 0.0
    assert log_loss(labels, -logits) == 1000.0


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1, 1], [0.1, 0.2], "both classes"),
        ([0, 2], [0.1, 0.2], "labels must be 0 or 1"),
        ([0, 1], [0.1, math.nan], "NaN"),
        ([0, 1], [0.1], "one length"),
        ([[0, 1]], [[0.1, 0.2]], "1-D"),
    ],
)
def test_auc_refuses(labels: list[int], scores: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        auc(labels, scores)


def test_log_loss_refuses_no_samples() -> None:
    with pytest.raises(ValueError, match="at least one"):
        log_loss(np.empty(0), np.empty(0))
