from __future__ import annotations

import json
import math

import numpy as np
import pytest

from cpr_native.overhead import CostEstimate, MtbfEstimate
from cpr_native.overhead._gamma import digamma, gamma_cdf, gamma_quantile


@pytest.mark.parametrize("shape", [1, 2, 5, 40])
@pytest.mark.parametrize("x", [0.01, 0.7, 3.0, 39.0, 90.0])
def test_gamma_of_whole_shape_is_a_poisson_tail(shape: int, x: float) -> None:
    tail = 1.0 - sum(math.exp(-x) * x**k / math.factorial(k) for k in range(shape))
    assert gamma_cdf(shape, x) == pytest.approx(tail, abs=1e-13)


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 30.0, 1e4])
@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.95, 0.999])
def test_gamma_quantile_is_the_inverse(shape: float, q: float) -> None:
    assert gamma_cdf(shape, gamma_quantile(shape, q)) == pytest.approx(q, abs=1e-9)


def test_half_shape_is_the_error_function() -> None:
    assert gamma_cdf(0.5, 1.3) == pytest.approx(math.erf(math.sqrt(1.3)), abs=1e-14)
    assert gamma_cdf(2.0, 0.0) == 0


@pytest.mark.parametrize("x", [0.1, 1.0, 3.7, 50.0])
def test_digamma_is_the_derivative(x: float) -> None:
    numeric = (math.lgamma(x + 1e-5) - math.lgamma(x - 1e-5)) / 2e-5
    assert digamma(x) == pytest.approx(numeric, rel=1e-6)


def test_mtbf_begins_with_the_prior_and_goes_to_what_is_seen() -> None:
    estimate = MtbfEstimate(28.0, weight=2.0)
    assert estimate.hours == pytest.approx(28.0)
    estimate.observe(28.0)
    assert estimate.hours == pytest.approx(42.0), "hours without a failure count: they are censored, not lost"
    for _ in range(200):
        estimate.observe(10.0)
        estimate.failed()
    assert estimate.hours == pytest.approx(10.0, rel=0.05)
    low, high = estimate.quantile_hours(0.05), estimate.quantile_hours(0.95)
    assert low < 10.0 < high
    assert high / low < 1.35


def test_mtbf_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    covered, trials = 0, 400
    for _ in range(trials):
        estimate = MtbfEstimate(28.0, weight=3.0)
        rate = rng.gamma(3.0, 1 / 84.0)
        estimate.observe(60.0)
        for _ in range(rng.poisson(rate * 60.0)):
            estimate.failed()
        covered += estimate.quantile_hours(0.1) < 1 / rate < estimate.quantile_hours(0.9)
    assert abs(covered / trials - 0.8) < 4 * math.sqrt(0.8 * 0.2 / trials)


def test_cost_is_the_mean_with_the_prior_as_observations() -> None:
    estimate = CostEstimate(0.1, weight=4.0, spread=0.5)
    seen = [0.3, 0.5, 0.4]
    for hours in seen:
        estimate.observe(hours)
    assert estimate.hours == pytest.approx((4 * 0.1 + sum(seen)) / 7)
    squares = 4 * 0.05**2 + 4 * (0.1 - estimate.hours) ** 2 + sum((x - estimate.hours) ** 2 for x in seen)
    assert estimate.standard_error == pytest.approx(math.sqrt(squares) / 7)
    low, high = estimate.interval(0.9)
    assert low < estimate.hours < high
    assert CostEstimate(0.1, spread=5.0).interval()[0] == 0


def test_states_survive_json() -> None:
    mtbf, cost = MtbfEstimate(28.0), CostEstimate(0.1)
    mtbf.observe(3.0)
    mtbf.failed()
    cost.observe(0.2)
    other_mtbf, other_cost = MtbfEstimate(28.0), CostEstimate(0.1)
    other_mtbf.load_state_dict(json.loads(json.dumps(mtbf.state_dict())))
    other_cost.load_state_dict(json.loads(json.dumps(cost.state_dict())))
    assert other_mtbf.quantile_hours(0.3) == mtbf.quantile_hours(0.3)
    assert (other_cost.hours, other_cost.standard_error) == (cost.hours, cost.standard_error)


@pytest.mark.parametrize("state", [{}, {"failures": 1}, {"failures": -1, "observed_hours": 1.0}])
def test_bad_state_is_refused_and_changes_nothing(state: dict[str, float]) -> None:
    estimate = MtbfEstimate(28.0)
    with pytest.raises(ValueError, match="MtbfEstimate"):
        estimate.load_state_dict(state)
    assert estimate.hours == 28.0


def test_values_out_of_range_raise() -> None:
    with pytest.raises(ValueError, match="mtbf_hours must be"):
        MtbfEstimate(0.0)
    with pytest.raises(ValueError, match="hours must be"):
        MtbfEstimate(1.0).observe(-1.0)
    with pytest.raises(ValueError, match="q must be in"):
        MtbfEstimate(1.0).quantile_hours(1.0)
    with pytest.raises(ValueError, match="hours must be"):
        CostEstimate(1.0).observe(math.nan)
    with pytest.raises(ValueError, match="weight must be"):
        CostEstimate(1.0, weight=0.0)
