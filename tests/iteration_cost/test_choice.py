"""The chosen saves are those of least expected overhead, by brute force and by simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.iteration_cost import Movement, Range, SaveCost, choose

INTERVALS = [1, 2, 4, 8, 16, 32, 64]
FRACTIONS = (0.125, 0.25, 0.5, 1.0)


def settings(**changed: Any) -> dict[str, Any]:
    return {
        "intervals": INTERVALS,
        "fractions": FRACTIONS,
        "c": 0.95,
        "distance": 1.0,
        "save": SaveCost(fixed=0.2, full=2.0),
        "mtbf_seconds": 600.0,
        "seconds_per_iteration": 1.0,
        "lost_share": 0.25,
        **changed,
    }


@given(data=st.data(), mtbf=st.floats(10, 1e5), lost=st.floats(0.05, 1), reload=st.floats(0, 100))
def test_no_option_is_cheaper(data: st.DataObject, mtbf: float, lost: float, reload: float) -> None:
    norms = np.array(
        data.draw(st.lists(st.floats(0, 10), min_size=28, max_size=28)), dtype=np.float64
    ).reshape(7, 4)
    given_ = settings(mtbf_seconds=mtbf, lost_share=lost, reload_seconds=reload)
    choice = choose(norms, **given_)
    overheads = [
        (0.2 + fraction * 2.0) / interval
        + (reload + math.log1p(math.sqrt(lost) * norms[i, j]) / math.log(1 / 0.95)) / mtbf
        for i, interval in enumerate(INTERVALS)
        for j, fraction in enumerate(FRACTIONS)
        if (0.2 + fraction * 2.0) / interval <= 1
    ]
    assert choice.overhead == pytest.approx(min(overheads))
    assert norms[INTERVALS.index(choice.interval), FRACTIONS.index(choice.fraction)] == choice.norm


def test_rarer_failures_are_met_with_rarer_saves() -> None:
    movement = Movement(np.geomspace(1e-3, 1.0, 200), np.full(200, 8))
    norms = movement.perturbations(0.95, np.array(INTERVALS), np.array(FRACTIONS))
    shares = []
    for mtbf in (20.0, 200.0, 2000.0, 20000.0):
        choice = choose(norms, **settings(mtbf_seconds=mtbf, distance=movement.distance(0.95)))
        shares.append(choice.fraction / choice.interval)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_range_comes_from_the_estimates() -> None:
    norms = np.full((7, 4), 0.5)
    choice = choose(norms, **settings(c=Range(0.95, 0.94, 0.96), distance=Range(1.0, 0.5, 2.0)))
    assert choice.iterations.low < choice.iterations.value < choice.iterations.high
    assert choice.iterations.value == pytest.approx(math.log1p(0.25) / math.log(1 / 0.95))
    assert (choice.interval, choice.fraction) == (64, 0.125)


def test_saves_that_never_end_are_left_out_unless_all_do() -> None:
    norms = np.zeros((7, 4))
    norms[1:] = 100.0
    slow = choose(norms, **settings(save=SaveCost(fixed=3.0, full=0.0), mtbf_seconds=1.0))
    assert slow.interval > 1
    hopeless = choose(norms, **settings(save=SaveCost(fixed=500.0, full=0.0)))
    assert hopeless.interval == 64


@pytest.mark.parametrize(
    ("norms", "changed", "message"),
    [
        (np.zeros((7, 3)), {}, "one for each of 7 intervals and 4 fractions"),
        (np.zeros((7, 4)), {"lost_share": 0.0}, "lost_share must be in"),
        (np.zeros((7, 4)), {"mtbf_seconds": 0.0}, "mtbf_seconds must be"),
        (np.zeros((7, 4)), {"intervals": [0, *INTERVALS[1:]]}, "at least 1 iteration"),
        (np.zeros((7, 4)), {"fractions": (0.5, 0.6, 0.7, 1.1)}, "fractions and lost_share"),
    ],
)
def test_bad_numbers_are_refused(norms: np.ndarray, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(norms, **settings(**changed))


def simulated(to_go: np.ndarray, c: float, interval: int, fraction: float, steps: int) -> float:
    """sqrt(E||delta||^2 / ||x - x*||^2) of SCAR's rule over blocks that go straight to their optimum."""
    quota = max(1, int(fraction * len(to_go)))
    saved_at = np.zeros(len(to_go))
    squares = []
    for now in range(1, steps + 1):
        away = to_go * (c ** -(now - saved_at) - 1)  # over c^now
        if now > steps // 2:
            squares.append(float(np.square(away).sum()))
        if now % interval == 0:
            saved_at[np.argsort(-away, kind="stable")[:quota]] = now
    return math.sqrt(np.mean(squares) / np.square(to_go).sum())


@pytest.mark.parametrize("spread", [1.0, 10.0, 1e3])
@pytest.mark.parametrize(("interval", "fraction"), [(16, 1.0), (4, 0.25), (2, 0.125), (8, 0.25)])
def test_perturbations_are_those_of_the_simulated_rule(spread: float, interval: int, fraction: float) -> None:
    """Within 20 %: a save takes whole blocks at whole times, the model shares of both."""
    c, n = 0.97, 400
    to_go = np.geomspace(1.0, spread, n)
    ages = np.random.default_rng(2).integers(1, 30, n)
    movement = Movement(to_go * (c**-ages - 1.0), ages)
    assert movement.distance(c) == pytest.approx(float(np.linalg.norm(to_go)))
    expected = simulated(to_go, c, interval, fraction, 1200)
    predicted = movement.perturbations(c, np.array([interval]), np.array([fraction]))[0, 0]
    assert predicted / movement.distance(c) == pytest.approx(expected, rel=0.2)


def test_priority_gains_by_how_unequally_blocks_move() -> None:
    """At equal bytes: nothing where all move alike, much where few do."""
    gains = []
    for spread in (1.0, 1e2, 1e4):
        to_go = np.geomspace(1.0, spread, 400)
        movement = Movement(to_go * (0.99**-10 - 1), np.full(400, 10))
        whole = movement.perturbations(0.99, np.array([16]), np.array([1.0]))[0, 0]
        part = movement.perturbations(0.99, np.array([2]), np.array([0.125]))[0, 0]
        gains.append(whole / part)
    assert gains[0] == pytest.approx(1.0, rel=0.01)
    assert gains[0] < gains[1] < gains[2]


def test_a_sample_stands_for_all() -> None:
    rng = np.random.default_rng(4)
    away, ages = rng.random(1000), rng.integers(1, 20, 1000)
    one = Movement(away, ages)
    doubled = Movement(np.repeat(away, 2), np.repeat(ages, 2))
    scaled = Movement(away, ages, scale=2.0)
    assert doubled.norm == pytest.approx(scaled.norm) == pytest.approx(one.norm * math.sqrt(2))
    assert doubled.distance(0.9) == pytest.approx(scaled.distance(0.9))
    grid = np.array([2.0, 8.0]), np.array([0.25, 1.0])
    np.testing.assert_allclose(doubled.perturbations(0.9, *grid), scaled.perturbations(0.9, *grid), rtol=1e-6)


def test_unmoved_blocks_cost_nothing() -> None:
    still = Movement(np.zeros(5), np.ones(5))
    assert (still.norm, still.distance(0.9)) == (0.0, 0.0)
    assert still.perturbations(0.9, np.array([4.0]), np.array([0.5])).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("distances", "ages", "message"),
    [
        (np.zeros(3), np.ones(2), "of the same blocks"),
        (np.array([-1.0]), np.ones(1), "distances must be finite"),
        (np.ones(1), np.zeros(1), "ages must be finite and at least 1"),
        (np.zeros(0), np.zeros(0), "at least one"),
    ],
)
def test_bad_movements_are_refused(distances: np.ndarray, ages: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Movement(distances, ages)
