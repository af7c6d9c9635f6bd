"""Simulated jobs: overhead and PLS of thousands at once, open loop (the CPR paper) and closed loop.

The paper's assumptions hold: failures strike during the T hours of work only, and lost work is trained again
without failing. What its equations leave out is in: saves are whole (none at the job's very end), the last
interval is shorter, and results are distributions. NumPy alone, seeded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.overhead._checks import check_number
from cpr_native.overhead.equations import (
    Costs,
    Job,
    Recovery,
    optimal_full_interval,
    partial_interval,
)
from cpr_native.overhead.loop import ClosedLoop
from cpr_native.overhead.quantile import KNOWN_RATE, Hours, Outlook, hazard, planned_intervals

_STREAM = 0x10B5


@dataclass(frozen=True, kw_only=True)
class FailureTimes:
    """How the times between failures are drawn.

    `mtbf_hours`: their mean; `gamma_shape`: of a gamma distribution, 1 for the exponential one; `recorded`:
    hours between failures that were seen, drawn with replacement instead. Raises ValueError.
    """

    mtbf_hours: float
    gamma_shape: float = 1.0
    recorded: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_number("FailureTimes", "mtbf_hours", self.mtbf_hours, positive=True)
        check_number("FailureTimes", "gamma_shape", self.gamma_shape, positive=True)
        if self.recorded is not None:
            if not self.recorded:
                raise ValueError("FailureTimes: recorded must have at least one time between failures")
            for hours in self.recorded:
                check_number("FailureTimes", "recorded", hours, positive=True)

    def draw(self, rng: np.random.Generator, jobs: int, total_hours: float) -> Hours:
        """Return the hours of the failures of each job, ascending: float64 [jobs, most], inf where none."""
        columns: list[Hours] = []
        now = np.zeros(jobs)
        while bool((now < total_hours).any()):
            now = now + self._gaps(rng, jobs)
            columns.append(np.where(now < total_hours, now, np.inf))
        return np.stack(columns, axis=1)

    def _gaps(self, rng: np.random.Generator, jobs: int) -> Hours:
        if self.recorded is not None:
            return np.asarray(rng.choice(np.asarray(self.recorded), jobs), np.float64)
        return rng.gamma(self.gamma_shape, self.mtbf_hours / self.gamma_shape, jobs)


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Simulated jobs, one element each [jobs].

    `total_hours`: their length; `saves`, `failures`: counts; `overhead_hours`; `pls`: of the whole job.
    """

    total_hours: float
    saves: NDArray[np.int64]
    failures: NDArray[np.int64]
    overhead_hours: Hours
    pls: Hours

    @property
    def overhead_percent(self) -> Hours:
        """Overhead of each job as a percentage of its length."""
        return 100.0 * self.overhead_hours / self.total_hours

    def exceeding(self, target_pls: float) -> float:
        """Return the share of jobs whose PLS is above `target_pls`."""
        return float(np.mean(self.pls > target_pls * (1 + 1e-9)))


def _failure_hours(job: Job, times: FailureTimes | None, jobs: int, seed: int) -> Hours:
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed])))
    return (times or FailureTimes(mtbf_hours=job.mtbf_hours)).draw(rng, jobs, job.total_hours)


def simulate_open(
    job: Job,
    costs: Costs,
    interval_hours: float,
    *,
    recovery: Recovery = "partial",
    fraction: float = 1.0,
    save_hours: float | None = None,
    lost_share: float = 1.0,
    times: FailureTimes | None = None,
    jobs: int = 10_000,
    seed: int = 0,
) -> Jobs:
    """Simulate jobs that save every `fraction * interval_hours` hours.

    `save_hours`: what one save costs (None: `costs.save_of(fraction)`); `lost_share`: what a failure loses
    relative to saves of everything every `interval_hours` (below 1 for priority saving); `times`: None for
    exponential ones of the job's MTBF. Equal seeds meet equal failures. Raises ValueError.
    """
    check_number("simulate_open", "interval_hours", interval_hours, positive=True)
    hours = _failure_hours(job, times, jobs, seed)
    failures = np.isfinite(hours).sum(axis=1)
    age = np.where(np.isfinite(hours), np.mod(np.where(np.isfinite(hours), hours, 0.0), interval_hours), 0.0)
    every = fraction * interval_hours
    saves = max(0, int(np.ceil(job.total_hours / every * (1 - 1e-12))) - 1)
    save_cost = costs.save_of(fraction) if save_hours is None else save_hours
    each = costs.load_of(recovery) + costs.reschedule_of(recovery)
    lost = age.sum(axis=1)
    overhead = saves * save_cost + failures * each
    partial = recovery == "partial"
    return Jobs(
        total_hours=job.total_hours,
        saves=np.full(jobs, saves),
        failures=failures,
        overhead_hours=overhead if partial else overhead + lost,
        pls=lost * (job.failed_shards * lost_share / (job.total_hours * job.shards)) * partial,
    )


def simulate_closed(
    job: Job,
    costs: Costs,
    target_pls: float,
    loop: ClosedLoop,
    *,
    known_rate: bool = False,
    times: FailureTimes | None = None,
    jobs: int = 10_000,
    seed: int = 0,
) -> Jobs:
    """Simulate jobs that recover partially and plan anew after each save and each failure.

    `job.mtbf_hours` is what the loop believes at the start (`known_rate`: and never doubts), `times` what
    happens. The failures are those of `simulate_open`. Raises ValueError.
    """
    fallback, _ = partial_interval(job, target_pls)
    run = _ClosedRun(job, _failure_hours(job, times, jobs, seed))
    budget = target_pls * job.total_hours * job.shards / job.failed_shards
    least = loop.least_interval_hours or min(optimal_full_interval(job, costs), job.total_hours)
    weight = KNOWN_RATE if known_rate else loop.mtbf_weight
    active = np.arange(jobs)
    while len(active):
        now = run.now[active]
        outlook = Outlook(
            budget=budget - run.lost[active],
            remaining=job.total_hours - now,
            age=now - run.saved[active],
            shape=np.asarray(weight + run.failed[active], np.float64),
            scale=weight * job.mtbf_hours + now,
        )
        interval, _ = planned_intervals(
            outlook,
            miss=1.0 - loop.probability,
            spent=run.spent[active],
            least_interval=np.full(len(active), least),
            exhausted_interval=fallback,
        )
        active = run.advance(active, outlook, interval)
    each = costs.load_of("partial") + costs.reschedule_of("partial")
    return Jobs(
        total_hours=job.total_hours,
        saves=run.saves,
        failures=run.failed,
        overhead_hours=run.saves * costs.save_of() + run.failed * each,
        pls=run.lost * (job.failed_shards / (job.total_hours * job.shards)),
    )


class _ClosedRun:
    """Where jobs stand, arrays [jobs]: hours now and at the last save, age lost, risk spent, counts."""

    def __init__(self, job: Job, failure_hours: Hours) -> None:
        self._total = job.total_hours
        self._failures = np.pad(failure_hours, ((0, 0), (0, 1)), constant_values=np.inf)
        jobs = len(failure_hours)
        self.now, self.saved, self.lost, self.spent = np.zeros((4, jobs))
        self.saves, self.failed = np.zeros((2, jobs), np.int64)

    def advance(self, active: NDArray[np.intp], outlook: Outlook, interval: Hours) -> NDArray[np.intp]:
        """Run the `active` jobs to their next save, failure or end; return those that have not ended."""
        failure = self._failures[active, self.failed[active]]
        due = np.maximum(self.saved[active] + interval, self.now[active])
        due = np.where(due < self._total * (1 - 1e-9), due, np.inf)
        then = np.minimum(np.minimum(due, failure), self._total)
        self.spent[active] += hazard(outlook, then - self.now[active], interval)
        self.now[active] = then
        fails = np.isfinite(failure) & (failure <= due)
        failing, saving = active[fails], active[~fails & np.isfinite(due)]
        self.lost[failing] += self.now[failing] - self.saved[failing]
        self.failed[failing] += 1
        self.saved[saving] = self.now[saving]
        self.saves[saving] += 1
        return active[fails | np.isfinite(due)]
