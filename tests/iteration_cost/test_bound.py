"""The bound holds on contractions started in the slowest direction, and says what it stands on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from iteration_cost.contractions import contraction, distances, stays_below, steps_for

from cpr_native.iteration_cost import bound

seeds = st.integers(0, 2**32 - 1)


@given(
    seed=seeds,
    size=st.integers(1, 6),
    c=st.floats(0.3, 0.97),
    times=st.lists(st.integers(0, 25), min_size=1, max_size=4, unique=True),
    scale=st.floats(1e-3, 30.0),
)
def test_bound_holds_from_the_slowest_direction(
    seed: int, size: int, c: float, times: list[int], scale: float
) -> None:
    rng = np.random.default_rng(seed)
    spectrum = rng.uniform(-c, c, size)
    spectrum[0] = c
    matrix, slowest = contraction(spectrum, rng)
    start = slowest * rng.uniform(0.1, 10)
    deltas = {k: rng.normal(size=size) * scale * float(rng.uniform()) for k in times}
    norms = {k: float(np.linalg.norm(delta)) for k, delta in deltas.items()}
    distance = float(np.linalg.norm(start))
    limit = bound(norms, c=c, distance=distance)
    eps = distance * c**30
    steps = 30 + steps_for(c, 1 + limit.total_perturbation / distance)
    plain = stays_below(distances(matrix, start, steps), eps * (1 + 1e-9))
    perturbed = stays_below(distances(matrix, start, steps, deltas), eps * (1 + 1e-9))
    assert perturbed - plain <= math.ceil(limit.iterations)


@given(c=st.floats(0.1, 0.99), at=st.integers(0, 200), size=st.floats(1e-6, 1e6))
def test_bound_is_what_one_perturbation_away_from_the_optimum_costs(c: float, at: int, size: float) -> None:
    """Exact along the slowest direction: `size` times the distance costs log(1 + size) / log(1/c)."""
    limit = bound({at: size * c**at}, c=c, distance=1.0)
    assert limit.iterations == pytest.approx(math.log1p(size) / -math.log(c), rel=1e-9)


@given(norms=st.lists(st.floats(0, 10), min_size=2, max_size=5), c=st.floats(0.1, 0.99))
def test_later_perturbations_cost_more(norms: list[float], c: float) -> None:
    early = bound(dict(enumerate(norms)), c=c, distance=1.0)
    late = bound(dict(enumerate(norms, start=3)), c=c, distance=1.0)
    assert late.iterations >= early.iterations
    expected = sum(norm * c**-k for k, norm in enumerate(norms))
    assert early.total_perturbation == pytest.approx(expected)


def test_full_rollback_in_the_slowest_direction_costs_its_iterations() -> None:
    c, saved, now = 0.9, 12, 29
    limit = bound({now: c**saved - c**now}, c=c, distance=1.0)
    assert limit.iterations == pytest.approx(now - saved)


def test_no_perturbation_costs_nothing() -> None:
    assert bound({}, c=0.5, distance=1.0).iterations == 0
    assert bound({3: 0.0}, c=0.5, distance=1.0).iterations == 0


def test_late_perturbations_do_not_overflow() -> None:
    limit = bound({100_000: 1.0}, c=0.5, distance=1.0)
    assert limit.iterations == pytest.approx(100_000)
    assert limit.total_perturbation == math.inf


def test_contraction_is_checked_where_distances_are_given() -> None:
    rng = np.random.default_rng(1)
    matrix, slowest = contraction(np.array([0.9, 0.3, -0.5]), rng)
    delta = {4: rng.normal(size=3)}
    seen = distances(matrix, slowest, 20, delta)
    norms = {4: float(np.linalg.norm(delta[4]))}
    held = bound(norms, c=0.9, distance=1.0, observed=seen.tolist())
    assert (held.supported, held.violated) == (True, ())
    assert "each of 20 steps" in held.checked[0]
    broken = bound(norms, c=0.8, distance=1.0, observed=seen.tolist())
    assert broken.supported is False
    assert "shrink the distance by less than c" in broken.violated[0]
    assert bound({}, c=0.8, distance=1.0, observed=seen.tolist()).supported is False, "the jump at 4"


def test_assumptions_are_named() -> None:
    unchecked = bound({1: 0.1}, c=0.9, distance=1.0)
    assert unchecked.supported is None
    assert any("contraction" in text for text in unchecked.assumed)
    assert unchecked.checked == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"c": 1.0}, r"c must be in \(0, 1\), got 1.0"),
        ({"c": 0.0}, r"c must be in"),
        ({"distance": 0.0}, "distance must be a finite number above 0"),
        ({"perturbations": {-1: 1.0}}, "from 0, got one at -1"),
        ({"perturbations": {2: math.nan}}, r"perturbations\[2\]"),
        ({"observed": [1.0]}, "at least two distances"),
        ({"observed": [1.0, -1.0]}, r"observed\[1\]"),
    ],
)
def test_bad_numbers_are_refused(changed: dict[str, object], message: str) -> None:
    given_: dict[str, object] = {"perturbations": {0: 1.0}, "c": 0.5, "distance": 1.0, **changed}
    perturbations = given_.pop("perturbations")
    with pytest.raises(ValueError, match=message):
        bound(perturbations, **given_)  # type: ignore[arg-type]
