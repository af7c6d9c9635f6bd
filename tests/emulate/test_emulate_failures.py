from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.emulate import Failure, draw_failures, given_failures, parse_failure

SEEDS = st.integers(0, 2**31)


@given(
    seed=SEEDS,
    count=st.integers(0, 30),
    shards=st.integers(1, 20),
    hours=st.floats(1, 1e4),
    fraction=st.floats(0.01, 1.0),
    times=st.sampled_from(["stratified", "uniform", "exponential", "gamma"]),
)
def test_drawn_failures_fit_the_job(
    seed: int, count: int, shards: int, hours: float, fraction: float, times: Any
) -> None:
    settings = {
        "total_hours": hours, "num_shards": shards, "count": count, "lost_fraction": fraction, "times": times,
        "mtbf": hours / 4, "gamma_shape": 0.8,
    }  # fmt: skip
    schedule = draw_failures(seed, **settings)
    assert schedule == draw_failures(seed, **settings)
    assert [failure.hour for failure in schedule] == sorted(failure.hour for failure in schedule)
    assert all(0 < failure.hour < hours for failure in schedule)
    assert all(len(failure.shards) == max(1, round(fraction * shards)) for failure in schedule)
    assert all(failure.shards[-1] < shards for failure in schedule)


@given(seed=SEEDS, count=st.integers(1, 20))
def test_stratified_puts_one_failure_into_each_part(seed: int, count: int) -> None:
    schedule = draw_failures(seed, total_hours=56.0, num_shards=8, count=count)
    assert [int(failure.hour * count / 56.0) for failure in schedule] == list(range(count))


def test_default_is_two_failures_of_one_shard_of_eight() -> None:
    schedule = draw_failures(0, total_hours=56.0, num_shards=8)
    assert [len(failure.shards) for failure in schedule] == [1, 1]


@pytest.mark.parametrize(("times", "shape"), [("exponential", 1.0), ("gamma", 3.0)])
def test_mean_time_between_drawn_failures_is_the_mtbf(times: Any, shape: float) -> None:
    schedule = draw_failures(
        1, total_hours=200_000.0, num_shards=8, times=times, mtbf=28.0, gamma_shape=shape
    )
    assert 200_000.0 / len(schedule) == pytest.approx(28.0, rel=0.05)


def test_seeds_differ_and_every_shard_is_drawn() -> None:
    schedules = [draw_failures(seed, total_hours=56.0, num_shards=8) for seed in range(60)]
    assert len({schedule.failures for schedule in schedules}) == 60
    assert {failure.shards[0] for schedule in schedules for failure in schedule} == set(range(8))


@given(hour=st.floats(0, 1e6), shards=st.sets(st.integers(0, 100), min_size=1))
def test_parse_failure_reads_what_str_writes(hour: float, shards: set[int]) -> None:
    failure = Failure(hour=float(f"{hour:g}"), shards=tuple(sorted(shards)))
    assert parse_failure(str(failure)) == failure


@pytest.mark.parametrize("text", ["", "20", "20:", ":3", "x:3", "20:3,", "20:a", "20:1.5", "20;3"])
def test_other_forms_of_a_failure_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form HOUR:SHARD\[,SHARD"):
        parse_failure(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("nan:1", "finite"), ("-1:1", "not negative"), ("1:2,2", "names a shard twice"), ("1:-1", ">= 0")],
)
def test_values_out_of_range_of_a_failure_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_failure(text)


def test_given_failures_are_sorted() -> None:
    schedule = given_failures([parse_failure("40:1,2"), parse_failure("20:3")], total_hours=56, num_shards=8)
    assert [str(failure) for failure in schedule] == ["20:3", "40:1,2"]
    assert len(schedule) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("56:1", "failure 56:1: hour must lie between 0 and the job's 56 hours"),
        ("0:1", "failure 0:1: hour must lie between 0"),
        ("20:8", "failure 20:8: no shard 8 among 8 shards"),
    ],
)
def test_given_failures_outside_the_job_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        given_failures([parse_failure(text)], total_hours=56, num_shards=8)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", -1, "seed must not be negative"),
        ("num_shards", 0, "num_shards must be at least 1"),
        ("count", -1, "count of failures must not be negative"),
        ("lost_fraction", 0.0, r"lost_fraction must lie in \(0, 1\]"),
        ("lost_fraction", 1.1, r"lost_fraction must lie in \(0, 1\]"),
        ("times", "daily", "times must be one of stratified, uniform, exponential, gamma"),
        ("mtbf", 0.0, "mtbf must be positive"),
        ("gamma_shape", float("nan"), "gamma_shape must be positive"),
        ("total_hours", float("inf"), "total_hours must be positive"),
    ],
)
def test_arguments_of_the_draw_are_checked(name: str, value: Any, message: str) -> None:
    arguments: dict[str, Any] = {"seed": 0, "total_hours": 56.0, "num_shards": 8, name: value}
    with pytest.raises(ValueError, match=message):
        draw_failures(arguments.pop("seed"), **arguments)
