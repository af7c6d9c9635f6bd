"""What a recovery changes, and what it is predicted to cost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cpr_native.iteration_cost import (
    Contraction,
    Range,
    contraction_of_losses,
    contraction_of_steps,
    perturbation_cost,
    perturbation_norm,
    predict,
)

blocks = arrays(np.float64, st.integers(1, 8), elements=st.floats(0, 1e3))


@given(distances=blocks, data=st.data())
def test_partial_perturbation_is_at_most_the_full_one(distances: np.ndarray, data: st.DataObject) -> None:
    lost = data.draw(arrays(np.bool_, len(distances)))
    everything = np.ones(len(distances), np.bool_)
    assert perturbation_norm(distances, lost) <= perturbation_norm(distances, everything)
    assert perturbation_norm(distances, everything) == pytest.approx(float(np.linalg.norm(distances)))


@given(distances=blocks, data=st.data())
def test_mean_square_over_uniformly_drawn_blocks_is_the_share(
    distances: np.ndarray, data: st.DataObject
) -> None:
    """Every way to lose k of the n blocks, equally likely: E||delta'||^2 = k/n ||delta||^2."""
    n = len(distances)
    k = data.draw(st.integers(0, n))
    squares = []
    for chosen in itertools.combinations(range(n), k):
        lost = np.zeros(n, np.bool_)
        lost[list(chosen)] = True
        squares.append(perturbation_norm(distances, lost) ** 2)
    assert np.mean(squares) == pytest.approx(perturbation_norm(distances, k / n) ** 2, rel=1e-9)
    assert np.mean(squares) == pytest.approx(k / n * float(np.square(distances).sum()), rel=1e-9)


@given(
    norm=st.floats(1e-6, 1e6),
    c=st.floats(0.05, 0.99),
    distance=st.floats(1e-6, 1e6),
    c_width=st.floats(0, 0.5),
    d_width=st.floats(1, 10),
)
def test_range_holds_the_cost_at_every_value_inside(
    norm: float, c: float, distance: float, c_width: float, d_width: float
) -> None:
    c_range = Range(c, c * (1 - c_width), c + (1 - c) * c_width)
    d_range = Range(distance, distance / d_width, distance * d_width)
    cost = perturbation_cost(norm, c=c_range, distance=d_range)
    assert cost.value == pytest.approx(math.log1p(norm / distance) / math.log(1 / c))
    for at_c, at_d in itertools.product(
        np.linspace(c_range.low, c_range.high, 5), np.linspace(d_range.low, d_range.high, 5)
    ):
        inside = perturbation_cost(norm, c=float(at_c), distance=float(at_d)).value
        assert cost.low * (1 - 1e-9) <= inside <= cost.high * (1 + 1e-9)


def estimate(c: float, start: float, steps: int) -> Contraction:
    return contraction_of_steps([(1 - c) * start * c**k for k in range(steps)])


def test_rollback_of_everything_is_predicted_exactly_on_the_slowest_direction() -> None:
    c, start, now, saved = 0.93, 5.0, 60, 44
    directions = np.array([0.6, 0.8])  # two blocks, one direction
    away = directions * start * (c**saved - c**now)
    whole = predict(estimate(c, start, now + 1), now=now, saved_at=saved, distances=away, lost=1.0)
    assert whole.full == now - saved
    assert whole.partial.value == pytest.approx(now - saved, rel=1e-6)
    assert whole.priority is None
    part = predict(
        estimate(c, start, now + 1),
        now=now,
        saved_at=saved,
        distances=away,
        lost=np.array([True, False]),
        saved_distances=away * 0.25,
    )
    assert part.priority is not None
    assert part.priority.value < part.partial.value < part.full


def test_estimate_is_carried_on_at_its_rate() -> None:
    early = estimate(0.9, 2.0, 40)
    later = predict(early, now=59, saved_at=50, distances=np.array([1e-4]), lost=1.0)
    here = perturbation_cost(1e-4, c=0.9, distance=2.0 * 0.9**59)
    assert later.partial.value == pytest.approx(here.value, rel=1e-6)


def test_refusals() -> None:
    away = np.ones(3)
    with pytest.raises(ValueError, match="not supported by the data: the steps do not become shorter"):
        predict(contraction_of_steps([1.0] * 20), now=3, saved_at=1, distances=away, lost=0.5)
    losses = contraction_of_losses([1 + 0.8**k for k in range(40)])
    with pytest.raises(ValueError, match="no distance without a curvature"):
        predict(losses, now=39, saved_at=1, distances=away, lost=0.5)
    given_distance = predict(
        losses, now=39, saved_at=1, distances=away, lost=0.5, distance=Range(2.0, 1.0, 3.0)
    )
    assert given_distance.partial.low < given_distance.partial.value < given_distance.partial.high
    with pytest.raises(ValueError, match="saved_at <= now"):
        predict(losses, now=3, saved_at=4, distances=away, lost=0.5)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\]"):
        perturbation_norm(away, 1.5)
    with pytest.raises(ValueError, match="expected bool"):
        perturbation_norm(away, np.array([True]))
    with pytest.raises(ValueError, match="finite numbers"):
        perturbation_norm(np.array([np.inf]), 0.5)
    with pytest.raises(ValueError, match="expected c in"):
        perturbation_cost(1.0, c=1.0, distance=1.0)
