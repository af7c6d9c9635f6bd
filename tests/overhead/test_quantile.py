from __future__ import annotations

import itertools

import numpy as np
import pytest

from cpr_native.overhead.quantile import (
    KNOWN_RATE,
    Outlook,
    even_intervals,
    hazard,
    planned_intervals,
    probability_within,
)

DRAWS = 200_000


def outlook(
    *,
    budget: float,
    remaining: float,
    age: float = 0.0,
    shape: float = KNOWN_RATE,
    mtbf: float = 28.0,
    steady: float | None = None,
) -> Outlook:
    one = [np.array([value]) for value in (budget, remaining, age, shape, shape * mtbf)]
    return Outlook(
        budget=one[0], remaining=one[1], age=one[2], shape=one[3], scale=one[4], steady_hours=steady
    )


def drawn(ahead: Outlook, interval: float, draws: int = DRAWS) -> float:
    """Share of simulated futures whose losses stay within the budget."""
    rng = np.random.default_rng(0)
    remaining, age = float(ahead.remaining[0]), float(ahead.age[0])
    rate = rng.gamma(ahead.shape[0], 1 / ahead.scale[0], draws)
    failures = rng.poisson(rate * remaining)
    hours = rng.random(failures.sum()) * remaining
    if ahead.steady_hours is not None:
        ages = rng.random(failures.sum()) * interval
    elif age < interval:
        since = hours + age
        ages = np.where(since < interval, since, (since - interval) % interval)
    else:
        ages = hours % interval
    lost = np.bincount(np.repeat(np.arange(draws), failures), weights=ages, minlength=draws)
    return float((lost <= ahead.budget[0]).mean())


@pytest.mark.parametrize("interval", [44.8, 18.0, 5.0])
@pytest.mark.parametrize("age", [0.0, 3.0, 20.0])
@pytest.mark.parametrize("shape", [KNOWN_RATE, 3.0])
def test_probability_is_that_of_simulated_futures(interval: float, age: float, shape: float) -> None:
    ahead = outlook(budget=30.0, remaining=36.0, age=age, shape=shape)
    exact = float(probability_within(ahead, np.array([interval]))[0])
    assert exact == pytest.approx(drawn(ahead, interval), abs=0.002 + 4 * 0.5 / DRAWS**0.5)


def test_steady_losses_and_many_failures() -> None:
    steady = outlook(budget=30.0, remaining=36.0, steady=56.0)
    assert probability_within(steady, np.array([20.0]))[0] == pytest.approx(drawn(steady, 20.0), abs=0.006)
    for shape in (KNOWN_RATE, 50.0):  # without a failure: e**-280
        many = outlook(budget=730.0, remaining=56.0, mtbf=0.2, shape=shape)
        exact = probability_within(many, np.array([5.0]))[0]
        assert 0.1 < exact < 0.99
        assert exact == pytest.approx(drawn(many, 5.0, draws=20_000), abs=0.02)


def test_grid_is_fine_enough() -> None:
    for interval in (44.8, 14.0, 3.0):
        ahead = outlook(budget=20.0, remaining=50.0, age=2.0)
        coarse = probability_within(ahead, np.array([interval]))[0]
        assert coarse == pytest.approx(
            probability_within(ahead, np.array([interval]), cells=1024)[0], abs=0.002
        )


def test_no_budget_no_probability() -> None:
    assert probability_within(outlook(budget=0.0, remaining=5.0), np.array([1.0]))[0] == 0
    assert probability_within(outlook(budget=-3.0, remaining=5.0), np.array([1.0]))[0] == 0


def test_longer_intervals_never_lose_less() -> None:
    ahead = outlook(budget=15.0, remaining=40.0, age=4.0)
    within = [probability_within(ahead, np.array([hours]))[0] for hours in np.linspace(0.5, 44.0, 60)]
    assert all(a >= b - 1e-3 for a, b in itertools.pairwise(within))


def test_chosen_interval_is_the_longest_even_one() -> None:
    ahead = outlook(budget=44.8, remaining=50.0, age=6.0)
    interval, possible = even_intervals(ahead, np.array([0.95]), np.array([1.0]))
    parts = round(56.0 / interval[0])
    assert possible[0]
    assert interval[0] == pytest.approx(56.0 / parts)
    assert probability_within(ahead, interval)[0] >= 0.95
    assert probability_within(ahead, np.array([56.0 / (parts - 1)]))[0] < 0.95


def test_what_cannot_be_kept_is_said() -> None:
    interval, possible = even_intervals(
        outlook(budget=0.5, remaining=50.0), np.array([0.95]), np.array([2.0])
    )
    assert (interval[0], bool(possible[0])) == (2.0, False)
    interval, possible = planned_intervals(
        outlook(budget=0.0, remaining=50.0),
        miss=0.05,
        spent=np.array([0.0]),
        least_interval=np.array([2.0]),
        exhausted_interval=44.8,
    )
    assert (interval[0], bool(possible[0])) == (44.8, False)


def test_risk_that_was_spent_shortens_the_interval() -> None:
    ahead = outlook(budget=44.8, remaining=56.0)
    planned = [
        planned_intervals(
            ahead, miss=0.2, spent=np.array([spent]), least_interval=np.array([1.0]), exhausted_interval=44.8
        )[0][0]
        for spent in (0.0, 0.15, 0.199)
    ]
    assert planned[0] > planned[1] > planned[2]


def test_hazard_counts_the_hours_beyond_the_budget() -> None:
    ahead = outlook(budget=10.0, remaining=50.0, age=4.0)
    assert hazard(ahead, np.array([5.0]), np.array([30.0]))[0] == 0
    assert hazard(ahead, np.array([9.0]), np.array([30.0]))[0] == pytest.approx(3.0 / 28.0)
    steady = outlook(budget=10.0, remaining=50.0, steady=56.0)
    assert hazard(steady, np.array([7.0]), np.array([20.0]))[0] == pytest.approx(7.0 / 28.0 / 2)
