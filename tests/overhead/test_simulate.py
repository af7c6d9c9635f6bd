from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from cpr_native.overhead import (
    KAGGLE,
    TERABYTE,
    ClosedLoop,
    FailureTimes,
    Job,
    Preset,
    closed_loop_study,
    expected_pls_in_job,
    full_overhead,
    simulate_closed,
    simulate_open,
)
from cpr_native.overhead.study import binomial_interval

JOBS = 10_000


@pytest.mark.parametrize("chosen", [KAGGLE, TERABYTE], ids=["kaggle", "terabyte"])
def test_open_loop_breaks_the_target_in_a_third_of_the_jobs(chosen: Preset) -> None:
    done = simulate_open(chosen.job, chosen.costs, 44.8, jobs=JOBS)
    assert abs(done.exceeding(0.1) - 0.35) < 4 * math.sqrt(0.35 * 0.65 / JOBS)
    assert done.pls.mean() == pytest.approx(expected_pls_in_job(chosen.job, 44.8), rel=0.04)
    assert done.pls.std() / done.pls.mean() == pytest.approx(0.82, abs=0.06)


def test_full_recovery_costs_what_the_equation_says() -> None:
    interval = 2.0
    done = simulate_open(KAGGLE.job, KAGGLE.costs, interval, recovery="full", jobs=JOBS)
    formula = full_overhead(KAGGLE.job, KAGGLE.costs, interval)
    last_save = KAGGLE.costs.save  # the formula counts one at the job's end
    assert done.overhead_hours.mean() == pytest.approx(formula.total - last_save, rel=0.02)
    assert not done.pls.any()


def test_priority_saves_are_counted_and_lose_their_share() -> None:
    vanilla = simulate_open(KAGGLE.job, KAGGLE.costs, 44.8, jobs=100)
    mfu = simulate_open(KAGGLE.job, KAGGLE.costs, 44.8, fraction=0.125, lost_share=0.25, jobs=100)
    assert (vanilla.saves[0], mfu.saves[0]) == (1, 9)
    np.testing.assert_allclose(mfu.pls, 0.25 * vanilla.pls)
    np.testing.assert_array_equal(mfu.failures, vanilla.failures)
    np.testing.assert_allclose(mfu.overhead_hours - vanilla.overhead_hours, 0.094 * (9 / 8 - 1))


REGIMES = {
    "paper": KAGGLE.job,
    "many failures": Job(total_hours=56.0, mtbf_hours=7.0, shards=8),
    "one large failure": Job(total_hours=56.0, mtbf_hours=300.0, shards=8, failed_shards=8),
    "half the shards": Job(total_hours=56.0, mtbf_hours=100.0, shards=8, failed_shards=4),
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("probability", [0.8, 0.95])
def test_closed_loop_keeps_its_promise(regime: str, probability: float) -> None:
    jobs = 1000
    loop = ClosedLoop(probability=probability)
    done = simulate_closed(REGIMES[regime], KAGGLE.costs, 0.1, loop, known_rate=True, jobs=jobs)
    miss = 1 - probability
    assert done.exceeding(0.1) <= miss + 3 * math.sqrt(miss * probability / jobs)


def test_risk_already_taken_is_counted() -> None:
    """A plan after each save that took the whole chance again would let 8 % of these jobs fail."""
    jobs = 4000
    job = REGIMES["one large failure"]
    done = simulate_closed(job, KAGGLE.costs, 0.1, ClosedLoop(probability=0.95), known_rate=True, jobs=jobs)
    assert done.exceeding(0.1) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / jobs)


def test_closed_loop_beats_even_open_intervals_of_equal_cost() -> None:
    loop = ClosedLoop(probability=0.95)
    closed = simulate_closed(KAGGLE.job, KAGGLE.costs, 0.1, loop, known_rate=True, jobs=3000)
    even = simulate_open(KAGGLE.job, KAGGLE.costs, 56.0 / 4, jobs=3000)
    assert closed.overhead_hours.mean() < even.overhead_hours.mean()
    assert closed.exceeding(0.1) < 0.5 * even.exceeding(0.1)


def test_wrong_mtbf_is_learnt() -> None:
    believed = dataclasses.replace(KAGGLE.job, mtbf_hours=112.0)
    loop = ClosedLoop(probability=0.9)
    times = FailureTimes(mtbf_hours=28.0)

    def exceeding(known_rate: bool) -> float:
        done = simulate_closed(
            believed, KAGGLE.costs, 0.1, loop, known_rate=known_rate, times=times, jobs=1000
        )
        return done.exceeding(0.1)

    assert exceeding(False) < 0.6 * exceeding(True)


def test_failure_times_have_the_mean_they_should() -> None:
    rng = np.random.default_rng(0)
    for times in (
        FailureTimes(mtbf_hours=28.0, gamma_shape=4.0),
        FailureTimes(mtbf_hours=28.0, recorded=(14.0, 42.0)),
    ):
        hours = times.draw(rng, 500, 2800.0)
        failures = np.isfinite(hours).sum(axis=1)
        assert failures.mean() == pytest.approx(100.0, rel=0.03)
        assert failures.std() < 8.0, "more even than Poisson's 10"
        assert (np.diff(np.where(np.isfinite(hours), hours, 1e9), axis=1) >= 0).all()


def test_equal_seeds_give_equal_jobs() -> None:
    loop = ClosedLoop()
    first, second, other = (
        simulate_closed(KAGGLE.job, KAGGLE.costs, 0.1, loop, jobs=50, seed=seed) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.pls, second.pls)
    assert not np.array_equal(first.pls, other.pls)


def test_study_is_json_and_its_curves_fall() -> None:
    study = closed_loop_study(KAGGLE, probabilities=(0.5, 0.9), jobs=500)
    assert json.loads(json.dumps(study, allow_nan=False)) == study
    assert study["open"]["overhead_percent"]["mean"] < 0.6
    for curve in ("open_curve", "closed_curve", "closed_learning"):
        exceeds = [point["p_exceeds"] for point in study[curve]]
        assert exceeds == sorted(exceeds, reverse=True)
        low, high = study[curve][0]["p_exceeds_ci95"]
        assert low < exceeds[0] < high


def test_binomial_interval_is_wilsons() -> None:
    assert binomial_interval(0.0, 100) == pytest.approx((0.0, 0.037), abs=5e-4)
    assert binomial_interval(0.5, 100) == pytest.approx((0.404, 0.596), abs=5e-4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"interval_hours": 0.0}, "interval_hours"),
    ],
)
def test_bad_settings_raise(change: dict[str, float], match: str) -> None:
    settings = {"interval_hours": 1.0, "jobs": 10, "seed": 0, **change}
    with pytest.raises(ValueError, match=match):
        simulate_open(
            KAGGLE.job,
            KAGGLE.costs,
            settings["interval_hours"],
            jobs=int(settings["jobs"]),
            seed=int(settings["seed"]),
        )


def test_bad_failure_times_raise() -> None:
    with pytest.raises(ValueError, match="recorded must have at least one"):
        FailureTimes(mtbf_hours=1.0, recorded=())
    with pytest.raises(ValueError, match="gamma_shape"):
        FailureTimes(mtbf_hours=1.0, gamma_shape=0.0)
