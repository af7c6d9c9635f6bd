"""The equations of the CPR paper: overhead, save intervals and portion of lost samples.

Source of every formula: Maeng et al., "Understanding and Improving Failure Tolerant Training for Deep
Learning Recommendation with Partial Recovery", MLSys 2021 (arXiv 2011.02999). All times are hours. Symbols:
T total time, T_save save interval, T_fail mean time between failures, N shards, k shards lost at a failure,
S samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cpr_native.overhead._checks import check_number

Recovery = Literal["full", "partial"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one save, load and reschedule cost, in hours of training time lost.

    `save`: one save of everything; `save_fixed`: the part of it that does not shrink with the bytes saved;
    `load`, `reschedule`: once per failure under full recovery; `load_partial`, `reschedule_partial`: the
    same under partial recovery (None: equal to the full ones). Raises ValueError for a negative or
    non-finite cost, for `save` of 0 and for `save_fixed` above `save`.
    """

    save: float
    load: float
    reschedule: float
    load_partial: float | None = None
    reschedule_partial: float | None = None
    save_fixed: float = 0.0

    def __post_init__(self) -> None:
        check_number("Costs", "save", self.save, positive=True)
        for name in ("load", "reschedule", "load_partial", "reschedule_partial", "save_fixed"):
            value = getattr(self, name)
            if value is not None:
                check_number("Costs", name, value, positive=False)
        if self.save_fixed > self.save:
            raise ValueError(f"Costs: save_fixed must be at most save ({self.save}), got {self.save_fixed}")

    def load_of(self, recovery: Recovery) -> float:
        """Hours to load once after a failure under `recovery`."""
        partial = self.load if self.load_partial is None else self.load_partial
        return partial if recovery == "partial" else self.load

    def reschedule_of(self, recovery: Recovery) -> float:
        """Hours to reschedule once after a failure under `recovery`."""
        partial = self.reschedule if self.reschedule_partial is None else self.reschedule_partial
        return partial if recovery == "partial" else self.reschedule

    def save_of(self, fraction: float = 1.0) -> float:
        """Hours of a save of `fraction` of the rows: the fixed part and its share of the rest."""
        return self.save_fixed + (self.save - self.save_fixed) * fraction


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: length and mean time between failures in hours, shards, shards lost at each failure.

    Raises ValueError for lengths that are not positive and unless 1 <= `failed_shards` <= `shards`.
    """

    total_hours: float
    mtbf_hours: float
    shards: int
    failed_shards: int = 1

    def __post_init__(self) -> None:
        check_number("Job", "total_hours", self.total_hours, positive=True)
        check_number("Job", "mtbf_hours", self.mtbf_hours, positive=True)
        if self.shards < 1:
            raise ValueError(f"Job: shards must be at least 1, got {self.shards}")
        if not 1 <= self.failed_shards <= self.shards:
            raise ValueError(
                f"Job: failed_shards must be 1 to shards ({self.shards}), got {self.failed_shards}"
            )

    @property
    def failures(self) -> float:
        """Failures expected in the job, T / T_fail."""
        return self.total_hours / self.mtbf_hours


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Hours of a job spent on fault tolerance, by cause."""

    save: float = 0.0
    load: float = 0.0
    lost: float = 0.0
    reschedule: float = 0.0

    @property
    def total(self) -> float:
        """All four causes together, hours."""
        return self.save + self.load + self.lost + self.reschedule

    def percent(self, total_hours: float) -> float:
        """The total as a percentage of a job of `total_hours`."""
        return 100.0 * self.total / total_hours


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a job should be saved and recovered, and what that is expected to cost.

    `interval_hours` is the interval of `strategy`; `capped` says that it was cut to the job's length.
    `overhead` is that of `strategy`; `full` and `partial` are both sides of the benefit check, at
    `full_interval_hours` and `partial_interval_hours`. `expected_pls` is the paper's estimate (0 under full
    recovery), `expected_pls_job` the mean over the job's real length. `reason` is a sentence for people.
    """

    strategy: Recovery
    interval_hours: float
    capped: bool
    overhead: Overhead
    expected_pls: float
    expected_pls_job: float
    full: Overhead
    partial: Overhead
    full_interval_hours: float
    partial_interval_hours: float
    reason: str


def full_overhead(job: Job, costs: Costs, interval_hours: float) -> Overhead:
    """Overhead of full recovery: `O_save*T/T_save + (O_load + T_save/2 + O_res)*T/T_fail`, by cause."""
    check_number("full_overhead", "interval_hours", interval_hours, positive=True)
    return Overhead(
        save=costs.save * job.total_hours / interval_hours,
        load=costs.load_of("full") * job.failures,
        lost=0.5 * interval_hours * job.failures,
        reschedule=costs.reschedule_of("full") * job.failures,
    )


def partial_overhead(job: Job, costs: Costs, interval_hours: float, *, fraction: float = 1.0) -> Overhead:
    """Overhead of partial recovery: `O_save*T/T_save + (O_load_p + O_res_p)*T/T_fail`, by cause.

    With `fraction` r below 1, priority saving: the fraction r of the rows every r*T_save, where a save
    costs `costs.save_of(r)`; without a fixed part that is the same sum. Raises ValueError for `fraction`
    outside (0, 1].
    """
    check_number("partial_overhead", "interval_hours", interval_hours, positive=True)
    if not 0 < fraction <= 1:
        raise ValueError(f"partial_overhead: fraction must be in (0, 1], got {fraction}")
    return Overhead(
        save=costs.save_of(fraction) * job.total_hours / (fraction * interval_hours),
        load=costs.load_of("partial") * job.failures,
        reschedule=costs.reschedule_of("partial") * job.failures,
    )


def optimal_full_interval(job: Job, costs: Costs) -> float:
    """Hours between saves that minimise full recovery's overhead: `sqrt(2*O_save*T_fail)`."""
    return math.sqrt(2.0 * costs.save * job.mtbf_hours)


def expected_pls(job: Job, interval_hours: float) -> float:
    """Return the expected PLS, `0.5*k*T_save/(T_fail*N)`; too high as T_save nears the job's length."""
    check_number("expected_pls", "interval_hours", interval_hours, positive=True)
    return 0.5 * job.failed_shards * interval_hours / (job.mtbf_hours * job.shards)


def expected_pls_in_job(job: Job, interval_hours: float) -> float:
    """Return the expected PLS with failures uniform over the job and its last interval cut short.

    The mean of `t mod T_save` over [0, T] takes the place of the `T_save/2` of `expected_pls`.
    """
    check_number("expected_pls_in_job", "interval_hours", interval_hours, positive=True)
    whole = math.floor(job.total_hours / interval_hours)
    rest = job.total_hours - whole * interval_hours
    mean_age = 0.5 * (whole * interval_hours**2 + rest**2) / job.total_hours
    return job.failed_shards * mean_age / (job.mtbf_hours * job.shards)


def partial_interval(job: Job, target_pls: float) -> tuple[float, bool]:
    """Return the hours between saves for a target PLS, `2*PLS*N*T_fail/k`, and whether the job caps them.

    Raises ValueError for `target_pls` outside (0, 1).
    """
    if not 0 < target_pls < 1:
        raise ValueError(f"target_pls must be in (0, 1), got {target_pls}; the paper uses 0.1")
    interval = 2.0 * target_pls * job.shards * job.mtbf_hours / job.failed_shards
    return min(interval, job.total_hours), interval > job.total_hours


def plan(job: Job, costs: Costs, target_pls: float = 0.1, *, fraction: float = 1.0) -> Plan:
    """Choose partial or full recovery by the paper's benefit check and give the interval of the cheaper one.

    `fraction` is that of a priority policy, see `partial_overhead`. Raises ValueError when the MTBF or the
    job is no longer than one save, for `target_pls` outside (0, 1), and for one so small that a save would
    not fit into its interval; the message names the smallest that is feasible.
    """
    for name, hours in (("mtbf_hours", job.mtbf_hours), ("total_hours", job.total_hours)):
        if hours <= costs.save:
            raise ValueError(
                f"{name} of {hours} is no longer than one save ({costs.save} h), so no save would complete; "
                f"feasible is {name} above {costs.save}, or a cheaper save"
            )
    partial_hours, partial_capped = partial_interval(job, target_pls)
    if fraction * partial_hours < costs.save_of(fraction):
        least = expected_pls(job, costs.save_of(fraction) / fraction)
        raise ValueError(
            f"target_pls of {target_pls} asks for a save every {fraction * partial_hours:.4g} h but one "
            f"takes {costs.save_of(fraction):.4g} h; feasible is a target_pls of at least {least:.4g}"
        )
    optimum = optimal_full_interval(job, costs)
    full_hours, full_capped = min(optimum, job.total_hours), optimum > job.total_hours
    full = full_overhead(job, costs, full_hours)
    partial = partial_overhead(job, costs, partial_hours, fraction=fraction)
    wins = partial.total < full.total
    percents = (
        f"{partial.percent(job.total_hours):.2f} % at an interval of {partial_hours:.3g} h against "
        f"{full.percent(job.total_hours):.2f} % of full recovery at {full_hours:.3g} h"
    )
    return Plan(
        strategy="partial" if wins else "full",
        interval_hours=partial_hours if wins else full_hours,
        capped=partial_capped if wins else full_capped,
        overhead=partial if wins else full,
        expected_pls=expected_pls(job, partial_hours) if wins else 0.0,
        expected_pls_job=expected_pls_in_job(job, partial_hours) if wins else 0.0,
        full=full,
        partial=partial,
        full_interval_hours=full_hours,
        partial_interval_hours=partial_hours,
        reason=f"Partial recovery costs {percents}, so it {'pays' if wins else 'does not pay'}.",
    )


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A job and its costs under a name."""

    job: Job
    costs: Costs
    target_pls: float = 0.1


_PAPER_JOB = Job(total_hours=56.0, mtbf_hours=28.0, shards=8)

# The published overheads imply O_save and the sum O_load + O_res; its even split is this project's.
KAGGLE = Preset(job=_PAPER_JOB, costs=Costs(save=0.094, load=0.045, reschedule=0.045))
TERABYTE = Preset(job=_PAPER_JOB, costs=Costs(save=0.083, load=0.069, reschedule=0.069))
