"""Estimates of c and the distance: right on average, with intervals as wide as they say, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iteration_cost.contractions import contraction, distances

from cpr_native.iteration_cost import (
    Contraction,
    ContractionEstimator,
    Range,
    contraction_of_losses,
    contraction_of_steps,
)

TRIALS = 200
# 95 % intervals: fewer than 90 % of 200 would be seen once in a thousand times.
LEAST = 0.9


def within(interval: Range | None, value: float) -> bool:
    assert interval is not None
    assert interval.low <= interval.value <= interval.high
    return interval.low <= value <= interval.high


def coverage(draw: Callable[[np.random.Generator], Contraction], *truths: tuple[str, float]) -> list[float]:
    """The share of trials whose interval of each named estimate holds its truth; refusals count as misses."""
    rng = np.random.default_rng(7)
    hits = np.zeros(len(truths))
    for _ in range(TRIALS):
        found = draw(rng)
        if found.supported:
            hits += [within(getattr(found, name), truth) for name, truth in truths]
    return (hits / TRIALS).tolist()


@pytest.mark.parametrize(("c", "n", "noise"), [(0.9, 60, 0.1), (0.99, 300, 0.2), (0.5, 12, 0.1)])
def test_intervals_from_steps_hold_as_often_as_they_say(c: float, n: int, noise: float) -> None:
    k = np.arange(n)

    def draw(rng: np.random.Generator) -> Contraction:
        return contraction_of_steps((1 - c) * c**k * 7 * np.exp(rng.normal(0, noise, n)))

    held = coverage(draw, ("c", c), ("distance", 7.0), ("distance_now", 7 * c ** (n - 1)))
    assert min(held) >= LEAST, held


@pytest.mark.parametrize(
    ("c", "n", "noise"), [(0.9, 60, 0.02), (0.95, 60, 0.001), (0.99, 300, 0.05), (0.7, 20, 0.02)]
)
def test_intervals_from_losses_hold_as_often_as_they_say(c: float, n: int, noise: float) -> None:
    k = np.arange(n)
    curvature = 0.5

    def draw(rng: np.random.Generator) -> Contraction:
        return contraction_of_losses(3 + c ** (2 * k) + rng.normal(0, noise, n), curvature=curvature)

    held = coverage(draw, ("c", c), ("gap", 1.0), ("distance", math.sqrt(2 / curvature)))
    assert min(held) >= LEAST, held


def test_a_long_noisy_sequence_in_constant_memory() -> None:
    c, n = 0.999, 4000
    rng = np.random.default_rng(3)
    estimator = ContractionEstimator()
    for k in range(n):
        estimator.observe(1 + c ** (2 * k) + rng.normal(0, 0.1))
    found = estimator.from_losses()
    assert within(found.c, c)
    assert found.c.high - found.c.low < 3e-4
    kept = estimator.state_dict()["losses"]
    assert len(kept["means"]) + len(kept["open"]) <= 128 + kept["stride"]


@given(
    c=st.floats(0.2, 0.98), start=st.floats(1e-3, 1e3), limit=st.floats(-10, 10), curvature=st.floats(0.1, 10)
)
def test_exact_sequences_give_exact_estimates(c: float, start: float, limit: float, curvature: float) -> None:
    n = min(200, max(16, int(math.log(1e5) / -math.log(c))))
    steps = contraction_of_steps([(1 - c) * start * c**k for k in range(n)])
    assert steps.c.value == pytest.approx(c, rel=1e-9)
    assert steps.distance is not None
    assert steps.distance.value == pytest.approx(start, rel=1e-6)
    losses = contraction_of_losses(
        [limit + curvature / 2 * (start * c**k) ** 2 for k in range(n)], curvature=curvature
    )
    if start**2 * curvature > 1e-3:  # otherwise rounding of the losses is noise
        assert losses.c.value == pytest.approx(c, rel=1e-4)
        assert losses.distance is not None
        assert losses.distance.value == pytest.approx(start, rel=1e-2)
        assert losses.limit == pytest.approx(limit, abs=1e-3 * start**2 * curvature + 1e-9)


def test_faster_directions_at_the_start_are_left_out() -> None:
    rng = np.random.default_rng(5)
    matrix, _ = contraction(np.array([0.97, 0.6, 0.5, 0.4, 0.2, -0.3]), rng)
    seen = distances(matrix, rng.normal(size=6) * 5, 200)
    steps = np.abs(np.diff(seen))
    for found in (contraction_of_losses(1 + np.square(seen)), contraction_of_steps(steps)):
        assert found.supported, found.reason
        assert found.c.value == pytest.approx(0.97, abs=2e-4)


K = np.arange(200)
NOISE = np.random.default_rng(0).normal(0, 0.1, 200)


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        (np.full(200, 2.0), "flat or diverges"),
        (2 + NOISE, "noise"),
        (1.01**K, "flat or diverges"),
        (1 / (K + 1), "power law"),
        (1 / np.sqrt(K + 1), "power law"),
        (-np.log(K + 2), "power law"),
        (1 / (K + 1) + NOISE / 100, "power law"),
        (1 - K / 1000, "too evenly"),
        (0.9 ** K[:7], "7 of 8 observations"),
    ],
    ids=["flat", "noise", "diverging", "1/k", "1/sqrt k", "-log k", "noisy 1/k", "line", "short"],
)
def test_losses_that_do_not_converge_linearly_are_refused(losses: np.ndarray, reason: str) -> None:
    found = contraction_of_losses(losses)
    assert reason in found.reason
    assert not found.supported
    assert math.isnan(found.c.value)
    with pytest.raises(ValueError, match="not supported by the data"):
        found.require()


@pytest.mark.parametrize(
    ("norms", "reason"),
    [
        (np.full(200, 2.0), "flat, diverges"),
        (np.exp(NOISE), "flat, diverges"),
        (1.01**K, "flat, diverges"),
        (1 / (K + 1), "rate of the steps changes"),
        (1 / (K + 1.0) ** 2, "rate of the steps changes"),
        (0.9**K + 1e-3 * np.exp(NOISE), "rate of the steps changes"),
        (1 - K / 1000, "less than a factor of 2"),
        (np.append(0.5 ** K[:20], 0.0), "length 0"),
        (0.9 ** K[:7], "7 of 8 observations"),
    ],
    ids=["flat", "noise", "diverging", "1/k", "1/k^2", "noise floor", "line", "stopped", "short"],
)
def test_steps_that_do_not_converge_linearly_are_refused(norms: np.ndarray, reason: str) -> None:
    assert reason in contraction_of_steps(norms).reason


@given(
    values=st.lists(st.floats(0.01, 10), min_size=1, max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=3),
)
def test_online_is_batch(values: list[float], cuts: list[int]) -> None:
    """One by one, with a restart from JSON values in between, as all at once."""
    estimator = ContractionEstimator(window=32)
    at_once = ContractionEstimator(window=32)
    for k, value in enumerate(values):
        if k in cuts:
            restored = ContractionEstimator(window=32)
            restored.load_state_dict(estimator.state_dict())
            estimator = restored
        estimator.observe(value)
        estimator.observe_step(value)
        if k % 50 == 0:
            estimator.from_losses()
    for value in values:
        at_once.observe(value)
    for value in values:
        at_once.observe_step(value)
    assert repr(estimator.from_losses()) == repr(at_once.from_losses())
    assert repr(estimator.from_steps()) == repr(at_once.from_steps())


def test_bad_numbers_are_refused() -> None:
    estimator = ContractionEstimator()
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            estimator.observe(value)
    with pytest.raises(ValueError, match="at least 0"):
        estimator.observe_step(-1.0)
    with pytest.raises(ValueError, match="even number of at least 16"):
        ContractionEstimator(window=15)
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\)"):
        ContractionEstimator(confidence=1.0)
    with pytest.raises(ValueError, match="curvature must be"):
        ContractionEstimator(curvature=0.0)
    state = estimator.state_dict()
    state["losses"]["means"] = [math.nan]
    with pytest.raises(ValueError, match="not the state of a series"):
        estimator.load_state_dict(state)
