"""The ways to run a planned job, each with what it costs on paper and over simulated jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cpr_native import overhead
from cpr_native.cli.plan_tables import use_of_policies
from cpr_native.overhead import (
    ClosedLoop,
    Costs,
    FailureTimes,
    Job,
    LoopState,
    Overhead,
    Plan,
    PolicyUse,
    Recovery,
    TableUse,
    simulate_closed,
    simulate_open,
)
from cpr_native.overhead.study import describe

_PRIORITY = ("mfu", "ssu", "scar", "drift", "random", "round_robin")
_CHANGE_RANKED = ("scar", "drift")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is planned.

    `job`: failures that lose rows; `costs`, `target_pls`, `fraction`, `probability`; `times`: how failures
    come; `jobs`: to simulate; `reattach_share`, `reattach_hours`: failures that leave the tables in
    memory and what each costs; `tables` and `samples`: None, or what a job looks up.
    """

    job: Job
    costs: Costs
    target_pls: float
    fraction: float
    probability: float
    times: FailureTimes
    jobs: int
    reattach_share: float = 0.0
    reattach_hours: float = 0.0
    tables: tuple[TableUse, ...] | None = None
    samples: float | None = None

    @property
    def reattach_total_hours(self) -> float:
        """Hours that re-attaching costs in the job, expected."""
        all_failures = self.job.failures / (1.0 - self.reattach_share)
        return all_failures * self.reattach_share * self.reattach_hours


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to run the job: the paper's figures, `simulated` jobs, and bytes where they are known.

    `lost_share`: lookups lost relative to saves of everything every T_save; None where not known (counted 1).
    """

    strategy: str
    recovery: Recovery
    interval_hours: float
    overhead: Overhead
    pls_expected: float
    pls_expected_job: float
    simulated: dict[str, Any]
    lost_share: float | None = None
    bytes_written: float | None = None

    def to_dict(self, total_hours: float) -> dict[str, Any]:
        """Return JSON values."""
        values = dataclasses.asdict(self)
        values["overhead_hours"] = values.pop("overhead")
        values["overhead_percent"] = self.overhead.percent(total_hours)
        return values


def choices(request: Request, vanilla: Plan) -> list[Choice]:
    """Return every policy's choice, `full` first."""
    cover = vanilla.partial_interval_hours
    uses: dict[str, PolicyUse] = {}
    delta_use = None
    if request.tables is not None and request.samples is not None:
        common = {"total_hours": request.job.total_hours, "samples": request.samples}
        uses = use_of_policies(request.tables, fraction=request.fraction, cover_hours=cover, **common)
        delta_use = use_of_policies(
            request.tables, fraction=1.0, cover_hours=vanilla.full_interval_hours, **common
        )["delta"]
    everything = PolicyUse(save_bytes=_bytes(request.tables), save_share=1.0, lost_share=1.0)
    whole = None if request.tables is None else everything
    listed = [
        _choice(request, "full", "full", vanilla.full_interval_hours, 1.0, whole),
        _choice(request, "delta", "full", vanilla.full_interval_hours, 1.0, delta_use),
        _choice(request, "partial", "partial", cover, 1.0, whole),
        _choice(request, "delta_partial", "partial", cover, request.fraction, uses.get("delta")),
    ]
    for name in _PRIORITY:
        use = uses.get(name) or _use_of_change(name, uses, request)
        listed.append(_choice(request, name, "partial", cover, request.fraction, use))
    return listed


def _bytes(tables: tuple[TableUse, ...] | None) -> float:
    return float(sum(table.rows * table.row_bytes for table in tables or ()))


def _use_of_change(name: str, uses: dict[str, PolicyUse], request: Request) -> PolicyUse | None:
    """Bytes are those of MFU; what policies that rank by change lose, lookups alone can't tell."""
    if "mfu" not in uses:
        return None
    return dataclasses.replace(uses["mfu" if name in _CHANGE_RANKED else "random"], lost_share=1.0)


def _choice(
    request: Request, name: str, recovery: Recovery, cover: float, part: float, use: PolicyUse | None
) -> Choice:
    """A policy that saves every `part * cover` hours; a failure loses `use.lost_share` of `cover`'s age."""
    job, costs = request.job, request.costs
    save_hours = costs.save_of(use.save_share if use is not None else part)
    every = part * cover
    partial = recovery == "partial"
    lost_share = use.lost_share if use is not None and partial else 1.0
    expected = Overhead(
        save=save_hours * job.total_hours / every,
        load=costs.load_of(recovery) * job.failures,
        lost=0.0 if partial else 0.5 * cover * job.failures,
        reschedule=costs.reschedule_of(recovery) * job.failures + request.reattach_total_hours,
    )
    done = simulate_open(
        job, costs, cover, recovery=recovery, fraction=part, save_hours=save_hours, lost_share=lost_share,
        times=request.times, jobs=request.jobs,
    )  # fmt: skip
    done = dataclasses.replace(done, overhead_hours=done.overhead_hours + request.reattach_total_hours)
    known = use is not None and partial and name not in (*_CHANGE_RANKED, "round_robin")
    return Choice(
        strategy=name,
        recovery=recovery,
        interval_hours=every,
        overhead=expected,
        pls_expected=lost_share * overhead.expected_pls(job, cover) if partial else 0.0,
        pls_expected_job=lost_share * overhead.expected_pls_in_job(job, cover) if partial else 0.0,
        simulated=describe(done, request.target_pls),
        lost_share=lost_share if known else None,
        bytes_written=None if use is None else use.save_bytes * float(done.saves.mean()),
    )


def closed_loop(request: Request, open_loop: Choice) -> dict[str, Any]:
    """Return what it costs to keep the target with the chosen probability, as JSON values."""
    loop = ClosedLoop(probability=request.probability)
    job, costs, target = request.job, request.costs, request.target_pls
    done = simulate_closed(job, costs, target, loop, times=request.times, jobs=request.jobs)
    done = dataclasses.replace(done, overhead_hours=done.overhead_hours + request.reattach_total_hours)
    first = LoopState(loop, job, costs, target, recovery="partial")
    simulated = describe(done, target)
    more = simulated["overhead_percent"]["mean"] - open_loop.simulated["overhead_percent"]["mean"]
    return {
        "probability": request.probability,
        "first_interval_hours": first.interval_hours,
        "feasible": first.feasible,
        "simulated": simulated,
        "extra_overhead_percent": more,
        "open_p_exceeds": open_loop.simulated["p_exceeds"],
    }


def recommend(request: Request, vanilla: Plan, priority: Plan, listed: list[Choice]) -> tuple[str, str]:
    """Return the recommended policy, and one sentence why it recovers as it does; then what else counts."""
    if priority.strategy == "partial":
        by_name = {choice.strategy: choice for choice in listed}
        mfu, ssu = by_name["mfu"].lost_share, by_name["ssu"].lost_share
        why = "ssu needs the least memory for it, mfu ranks the rows more exactly."
        best = "ssu"
        if mfu is not None and ssu is not None:
            best = "mfu" if mfu < 0.9 * ssu else "ssu"
            why = (
                f"of the lookups that saves of everything lose, a failure loses {100 * mfu:.0f} % under mfu "
                f"and {100 * ssu:.0f} % under ssu, which needs less memory."
            )
        return best, (
            f"{_recovery_sentence(request, priority)} Priority saving keeps that cost and saves the rows in "
            f"use more often; {why}"
        )
    if vanilla.strategy == "partial":
        percent = priority.partial.percent(request.job.total_hours)
        return "partial", (
            f"{_recovery_sentence(request, vanilla)} Frequent priority saves would cost {percent:.2f} % "
            "because of the fixed cost of a save."
        )
    return "full", _recovery_sentence(request, vanilla)


def _recovery_sentence(request: Request, chosen: Plan) -> str:
    """Partial or full, and where to re-attach: one sentence."""
    if request.reattach_share == 0:
        return chosen.reason
    return (
        f"After the {100 * request.reattach_share:.0f} % of failures that leave the tables in memory, "
        f"re-attach to them ({request.reattach_hours:g} h each, nothing lost); for the others "
        f"{chosen.reason[0].lower()}{chosen.reason[1:]}"
    )
