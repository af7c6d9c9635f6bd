from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.overhead import (
    KAGGLE,
    TERABYTE,
    Costs,
    Job,
    expected_pls,
    expected_pls_in_job,
    full_overhead,
    optimal_full_interval,
    partial_interval,
    partial_overhead,
    plan,
)

JOB = Job(total_hours=56.0, mtbf_hours=28.0, shards=8)
COSTS = Costs(save=0.1, load=0.02, reschedule=0.03)


def test_paper_intervals_and_overheads() -> None:
    for preset, full_hours, full_percent, partial_percent in (
        (KAGGLE, 2.29, 8.52, 0.53),
        (TERABYTE, 2.16, 8.19, 0.68),
    ):
        chosen = plan(preset.job, preset.costs, preset.target_pls)
        assert chosen.strategy == "partial"
        assert chosen.full_interval_hours == pytest.approx(full_hours, abs=0.005)
        assert chosen.interval_hours == pytest.approx(44.8)
        assert not chosen.capped
        assert chosen.full.percent(56.0) == pytest.approx(full_percent, abs=0.005)
        assert chosen.partial.percent(56.0) == pytest.approx(partial_percent, abs=0.005)
        assert chosen.expected_pls == pytest.approx(0.1)
        assert chosen.expected_pls_job == pytest.approx(0.0850, abs=5e-5)


def test_overhead_is_split_by_cause() -> None:
    full = full_overhead(JOB, COSTS, 2.0)
    assert full.save == pytest.approx(2.8)
    assert full.load == pytest.approx(0.04)
    assert full.lost == pytest.approx(2.0)
    assert full.reschedule == pytest.approx(0.06)
    assert full.total == pytest.approx(4.9)
    partial = partial_overhead(JOB, COSTS, 2.0)
    assert (partial.save, partial.load, partial.reschedule) == (full.save, full.load, full.reschedule)
    assert partial.lost == 0


def test_partial_costs_differ_when_given() -> None:
    costs = dataclasses.replace(COSTS, load_partial=0.005, reschedule_partial=0.0)
    assert partial_overhead(JOB, costs, 2.0).load == pytest.approx(0.01)
    assert partial_overhead(JOB, costs, 2.0).reschedule == 0
    assert full_overhead(JOB, costs, 2.0) == full_overhead(JOB, COSTS, 2.0)


@given(st.floats(0.05, 50.0))
def test_optimal_interval_is_the_least(interval: float) -> None:
    best = optimal_full_interval(JOB, COSTS)
    assert full_overhead(JOB, COSTS, best).total <= full_overhead(JOB, COSTS, interval).total + 1e-12


def test_priority_saves_of_a_fraction_pay_the_fixed_part_each_time() -> None:
    assert partial_overhead(JOB, COSTS, 40.0, fraction=0.125).save == pytest.approx(
        partial_overhead(JOB, COSTS, 40.0).save
    )
    costs = dataclasses.replace(COSTS, save_fixed=0.02)
    assert partial_overhead(JOB, costs, 40.0, fraction=0.125).save == pytest.approx((0.02 + 0.01) * 56 / 5)


@given(st.floats(0.001, 0.5), st.integers(1, 64), st.integers(1, 4))
def test_interval_and_expected_pls_are_inverse(target: float, shards: int, failed: int) -> None:
    job = Job(total_hours=1e9, mtbf_hours=28.0, shards=shards, failed_shards=min(failed, shards))
    interval, capped = partial_interval(job, target)
    assert not capped
    assert expected_pls(job, interval) == pytest.approx(target)


def test_interval_is_capped_at_the_job() -> None:
    assert partial_interval(Job(total_hours=56.0, mtbf_hours=28.0, shards=11), 0.1) == (56.0, True)
    chosen = plan(Job(total_hours=56.0, mtbf_hours=28.0, shards=11), COSTS, 0.1)
    assert chosen.capped
    assert chosen.expected_pls_job == pytest.approx(chosen.expected_pls)


def test_expected_pls_in_job_is_the_mean_over_uniform_failures() -> None:
    hours = [(index + 0.5) * 56.0 / 100_000 for index in range(100_000)]
    mean_age = sum(hour % 44.8 for hour in hours) / len(hours)
    assert expected_pls_in_job(JOB, 44.8) == pytest.approx(mean_age / (28.0 * 8), rel=1e-4)


def test_benefit_check_falls_back_to_full() -> None:
    costs = dataclasses.replace(COSTS, load_partial=5.0)
    chosen = plan(JOB, costs, 0.1)
    assert chosen.strategy == "full"
    assert chosen.overhead == chosen.full
    assert chosen.interval_hours == optimal_full_interval(JOB, costs)
    assert chosen.expected_pls == 0
    assert "does not pay" in chosen.reason


@pytest.mark.parametrize(
    "name", ["save", "load", "reschedule", "load_partial", "reschedule_partial", "save_fixed"]
)
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_bad_costs_raise(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .* got"):
        dataclasses.replace(COSTS, **{name: value})


def test_save_costs_must_make_sense() -> None:
    with pytest.raises(ValueError, match="save must be a finite number above 0, got 0"):
        Costs(save=0.0, load=0.0, reschedule=0.0)
    with pytest.raises(ValueError, match="save_fixed must be at most save"):
        Costs(save=0.1, load=0.0, reschedule=0.0, save_fixed=0.2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"total_hours": 0.0}, "total_hours"),
        ({"mtbf_hours": -1.0}, "mtbf_hours"),
        ({"shards": 0}, "shards"),
        ({"failed_shards": 9}, "failed_shards must be 1 to shards"),
        ({"failed_shards": 0}, "failed_shards"),
    ],
)
def test_bad_jobs_raise(change: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(JOB, **change)


@pytest.mark.parametrize("target", [0.0, 1.0, -0.5, 2.0])
def test_target_pls_outside_zero_and_one_raises(target: float) -> None:
    with pytest.raises(ValueError, match=r"target_pls must be in \(0, 1\)"):
        plan(JOB, COSTS, target)


def test_mtbf_shorter_than_a_save_raises_and_says_what_is_feasible() -> None:
    with pytest.raises(ValueError, match=r"feasible is mtbf_hours above 0\.1"):
        plan(dataclasses.replace(JOB, mtbf_hours=0.05), COSTS)
    with pytest.raises(ValueError, match=r"feasible is total_hours above 0\.1"):
        plan(dataclasses.replace(JOB, total_hours=0.1), COSTS)


def test_target_pls_too_small_names_the_smallest_feasible_one() -> None:
    with pytest.raises(ValueError, match=r"feasible is a target_pls of at least 0\.0002232") as raised:
        plan(JOB, COSTS, 1e-5)
    assert "0.1 h" in str(raised.value)
    assert plan(JOB, COSTS, 0.000224).partial_interval_hours >= COSTS.save


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_bad_fraction_raises(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction must be in"):
        partial_overhead(JOB, COSTS, 1.0, fraction=fraction)


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan")])
def test_bad_interval_raises(interval: float) -> None:
    for function in (expected_pls, expected_pls_in_job):
        with pytest.raises(ValueError, match="interval_hours"):
            function(JOB, interval)
