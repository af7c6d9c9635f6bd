"""Failure schedules: which shards fail at which hour of the emulated job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Times = Literal["stratified", "uniform", "exponential", "gamma"]
"""How the hours of failures are drawn; see `draw_failures`."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The loss of some shards at one hour.

    Args:
        hour: hours of work since the start of the job, not negative.
        shards: the shards lost, distinct, in ascending order, at least one.

    Raises:
        ValueError: a value is out of range.
    """

    hour: float
    shards: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.hour) and self.hour >= 0):
            raise ValueError(f"hour of a failure must be finite and not negative, got {self.hour}")
        if not self.shards or min(self.shards) < 0 or list(self.shards) != sorted(set(self.shards)):
            raise ValueError(f"shards of a failure must be distinct, ascending and >= 0, got {self.shards}")

    def __str__(self) -> str:
        return f"{self.hour:g}:{','.join(map(str, self.shards))}"


@dataclass(frozen=True, kw_only=True)
class FailureSchedule:
    """The failures of one job in order of time.

    Args:
        failures: in ascending order of hour, each within (0, total_hours), shards below num_shards.
        total_hours: hours of the job, positive.
        num_shards: shards of the job, at least 1.

    Raises:
        ValueError: a failure is outside the job, names a shard that does not exist or is out of order.
    """

    failures: tuple[Failure, ...]
    total_hours: float
    num_shards: int

    def __post_init__(self) -> None:
        previous = 0.0
        for failure in self.failures:
            if not 0 < failure.hour < self.total_hours:
                raise ValueError(
                    f"failure {failure}: hour must lie between 0 and the job's {self.total_hours:g} hours"
                )
            if failure.shards[-1] >= self.num_shards:
                raise ValueError(
                    f"failure {failure}: no shard {failure.shards[-1]} among {self.num_shards} shards"
                )
            if failure.hour < previous:
                raise ValueError(f"failure {failure} comes after one of hour {previous:g}: out of order")
            previous = failure.hour

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.failures)

    def __len__(self) -> int:
        return len(self.failures)


def parse_failure(text: str) -> Failure:
    """Read `HOUR:SHARD[,SHARD...]`, for instance `20:3` or `40.5:1,2`.

    Raises:
        ValueError: the text has another form or a value is out of range.
    """
    hour, colon, shards = text.partition(":")
    try:
        if not colon:
            raise ValueError
        numbers = [int(part) for part in shards.split(",")]
        parsed = float(hour)
    except ValueError:
        raise ValueError(f"failure {text!r} is not of the form HOUR:SHARD[,SHARD...]") from None
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"failure {text!r} names a shard twice")
    return Failure(hour=parsed, shards=tuple(sorted(numbers)))


def given_failures(failures: Iterable[Failure], *, total_hours: float, num_shards: int) -> FailureSchedule:
    """The schedule of exactly these failures, sorted by hour.

    Raises:
        ValueError: a failure does not fit the job (see `FailureSchedule`).
    """
    ordered = tuple(sorted(failures, key=lambda failure: (failure.hour, failure.shards)))
    return FailureSchedule(failures=ordered, total_hours=total_hours, num_shards=num_shards)


def draw_failures(
    seed: int,
    *,
    total_hours: float,
    num_shards: int,
    count: int = 2,
    lost_fraction: float = 0.125,
    times: Times = "stratified",
    mtbf: float = 28.0,
    gamma_shape: float = 1.0,
) -> FailureSchedule:
    """Draw a schedule from `seed`; equal arguments give an equal schedule on every machine.

    `times` chooses how the hours are drawn:
    `stratified`: `count` failures, one drawn uniformly in each of `count` equal parts of the job;
    `uniform`: `count` failures drawn uniformly in the job (a Poisson process given its count);
    `exponential`: time between failures exponential of mean `mtbf`, as many as fall into the job;
    `gamma`: time between failures gamma of shape `gamma_shape` and mean `mtbf`, likewise
    (CPR, MLSys 2021, section 3, fits the time to failure by a gamma distribution).

    Args:
        seed: not negative.
        total_hours: hours of the job, positive.
        num_shards: shards of the job, at least 1.
        count: failures of `stratified` and `uniform`, not negative.
        lost_fraction: share of the shards lost at each failure, in (0, 1]; at least one shard is lost.
        times: see above.
        mtbf: mean time between failures in hours, positive.
        gamma_shape: shape of the gamma distribution, positive; 1 is the exponential distribution.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_draw(seed, total_hours, num_shards, count, lost_fraction, times, mtbf, gamma_shape)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0xFA11, seed])))
    if times == "stratified":
        hours = (np.arange(count) + rng.random(count)) * (total_hours / max(count, 1))
    elif times == "uniform":
        hours = np.sort(rng.random(count)) * total_hours
    else:
        shape = gamma_shape if times == "gamma" else 1.0
        hours = _renewals(rng, shape=shape, mean=mtbf, until=total_hours)
    lost = max(1, round(lost_fraction * num_shards))
    failures = []
    for hour in hours.tolist():
        shards = np.sort(rng.permutation(num_shards)[:lost])
        if 0 < hour < total_hours:
            failures.append(Failure(hour=hour, shards=tuple(shards.tolist())))
    return FailureSchedule(failures=tuple(failures), total_hours=total_hours, num_shards=num_shards)


def _renewals(
    rng: np.random.Generator, *, shape: float, mean: float, until: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Times of a renewal process with gamma waiting times that fall before `until`."""
    hours: list[float] = []
    now = float(rng.gamma(shape, mean / shape))
    while now < until:
        hours.append(now)
        now += float(rng.gamma(shape, mean / shape))
    return np.array(hours, dtype=np.float64)


def _check_draw(
    seed: int,
    total_hours: float,
    num_shards: int,
    count: int,
    lost_fraction: float,
    times: str,
    mtbf: float,
    gamma_shape: float,
) -> None:
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if num_shards < 1:
        raise ValueError(f"num_shards must be at least 1, got {num_shards}")
    if count < 0:
        raise ValueError(f"count of failures must not be negative, got {count}")
    if not 0 < lost_fraction <= 1:
        raise ValueError(f"lost_fraction must lie in (0, 1], got {lost_fraction}")
    if times not in get_args(Times):
        raise ValueError(f"times must be one of {', '.join(get_args(Times))}, got {times!r}")
    for name, value in (("total_hours", total_hours), ("mtbf", mtbf), ("gamma_shape", gamma_shape)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
