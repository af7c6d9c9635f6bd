"""Predicted costs of partial recoveries against measured ones, of two regressions by gradient descent."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native.iteration_cost import (
    Movement,
    Range,
    contraction_of_losses,
    contraction_of_steps,
    predict,
)

Array = NDArray[np.float64]
SAMPLES, FEATURES, CLASSES = 192, 32, 5
NOW, SAVED, LOST = 150, 134, 0.25


def ridge(rng: np.random.Generator) -> tuple[Callable[[Array], float], Callable[[Array], Array], Array]:
    x = rng.normal(size=(SAMPLES, FEATURES)) * np.geomspace(1, 0.1, FEATURES)
    y = x @ rng.normal(size=(FEATURES, 1)) + 0.1 * rng.normal(size=(SAMPLES, 1))

    def loss(w: Array) -> float:
        return float(0.5 * np.square(x @ w - y).mean() + 0.03 * np.square(w).sum())

    return loss, lambda w: w - 0.6 * (x.T @ (x @ w - y) / SAMPLES + 0.06 * w), np.zeros((FEATURES, 1))


def logistic(rng: np.random.Generator) -> tuple[Callable[[Array], float], Callable[[Array], Array], Array]:
    x = rng.normal(size=(SAMPLES, FEATURES)) * np.geomspace(1, 0.1, FEATURES)
    label = (x @ rng.normal(size=(FEATURES, CLASSES)) * 2).argmax(axis=1)

    def probability(w: Array) -> Array:
        z = np.exp(x @ w - (x @ w).max(axis=1, keepdims=True))
        return z / z.sum(axis=1, keepdims=True)

    def loss(w: Array) -> float:
        own = probability(w)[np.arange(SAMPLES), label]
        return float(0.005 * np.square(w).sum() - np.log(own).mean())

    def step(w: Array) -> Array:
        return w - 1.5 * (x.T @ (probability(w) - np.eye(CLASSES)[label]) / SAMPLES + 0.01 * w)

    return loss, step, np.zeros((FEATURES, CLASSES))


def crossing(distances: Array, eps: float) -> float:
    """The iteration at which the distance comes to `eps`, between iterations on a logarithmic scale."""
    last = int(np.flatnonzero(distances > eps)[-1])
    above, below = math.log(distances[last]), math.log(distances[last + 1])
    return last + (above - math.log(eps)) / (above - below)


@pytest.mark.parametrize("model", [ridge, logistic], ids=["ridge", "multinomial logistic"])
@pytest.mark.parametrize("source", ["losses and movement", "steps"])
def test_measured_costs_are_within_the_predicted_bound_and_above_a_third_of_it(
    model: Callable[..., tuple[Callable[[Array], float], Callable[[Array], Array], Array]], source: str
) -> None:
    rng = np.random.default_rng(3)
    loss, step, w = model(rng)
    run = [w]
    for _ in range(2000):
        run.append(step(run[-1]))
    best = run[-1]

    def distances(trace: list[Array]) -> Array:
        return np.array([np.linalg.norm(each - best) for each in trace])

    eps = 0.3 * float(np.linalg.norm(run[NOW] - best))
    moved = np.linalg.norm(run[NOW] - run[SAVED], axis=1)
    seen = run[: NOW + 1]
    if source == "steps":
        found = contraction_of_steps([float(np.linalg.norm(b - a)) for a, b in pairwise(seen)])
        distance = None
    else:
        found = contraction_of_losses([loss(each) for each in seen])
        there = Movement(moved, np.full(FEATURES, NOW - SAVED)).distance(found.c.value)
        distance = Range(there, there, there)
    measured, predicted = [], []
    for _ in range(12):
        lost = rng.permutation(FEATURES) < LOST * FEATURES
        mixed = np.where(lost[:, None], run[SAVED], run[NOW])
        trace = [mixed]
        for _ in range(400):
            trace.append(step(trace[-1]))
        measured.append(NOW + crossing(distances(trace), eps) - crossing(distances(run), eps))
        cost = predict(found, now=NOW, saved_at=SAVED, distances=moved, lost=lost, distance=distance)
        assert cost.full == NOW - SAVED
        predicted.append(cost.partial.value)
    assert all(m <= 1.05 * p for m, p in zip(measured, predicted, strict=True))
    assert np.mean(measured) > np.mean(predicted) / 3
    assert max(predicted) < NOW - SAVED, "less than full recovery"
