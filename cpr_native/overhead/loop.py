"""The closed loop of one job: what it has learnt, and the interval that follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpr_native.overhead._checks import check_number
from cpr_native.overhead.equations import (
    Costs,
    Job,
    Recovery,
    optimal_full_interval,
    partial_interval,
)
from cpr_native.overhead.estimates import CostEstimate, MtbfEstimate
from cpr_native.overhead.quantile import Outlook, hazard, planned_intervals


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Plan the save interval anew after each save and each recovery.

    `probability`: that the job's final PLS stays within its target (partial policies); `mtbf_weight`: the
    given MTBF counts as that many failures seen; `cost_weight`: the given costs count as that many
    observations each; `measure_costs`: saves and recoveries are timed, 3600 seconds to an hour of the job
    (False where the job's hours are emulated); `least_interval_hours`: never save more often than this
    (None: full recovery's optimum, `sqrt(2*O_save*T_fail)`, below which saves cost more than partial
    recovery gains). Raises ValueError.
    """

    probability: float = 0.95
    mtbf_weight: float = 2.0
    cost_weight: float = 4.0
    measure_costs: bool = True
    least_interval_hours: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ValueError(f"probability must be in (0, 1), got {self.probability}; 0.95 is usual")
        for name in ("mtbf_weight", "cost_weight", "least_interval_hours"):
            if getattr(self, name) is not None:
                check_number("ClosedLoop", name, getattr(self, name), positive=True)


class LoopState:
    """The estimates of one job and the plan in force. All hours are hours of work of the job.

    `settings`; `job`, `costs`: the priors; `target_pls`; `recovery`: of the policy; `steady`: the policy has
    no complete saves (priority saving), so that the work since the last one says nothing.

    `mtbf`, `save`, `load`, `reschedule`: the estimates, where the user's own observations may be added
    (nobody but the user knows how long a reschedule took). `interval_hours`: between saves of everything; the
    plan in force. `feasible`: whether that plan reaches the probability.
    """

    def __init__(
        self,
        settings: ClosedLoop,
        job: Job,
        costs: Costs,
        target_pls: float,
        *,
        recovery: Recovery,
        steady: bool = False,
    ) -> None:
        self.settings = settings
        self._job = job
        self._recovery = recovery
        self._steady_hours = job.total_hours if steady else None
        self._budget_hours = target_pls * job.total_hours * job.shards / job.failed_shards
        self._target_pls = target_pls
        self._exhausted_hours, _ = partial_interval(job, target_pls)
        weight = settings.cost_weight
        self.mtbf = MtbfEstimate(job.mtbf_hours, weight=settings.mtbf_weight)
        self.save = CostEstimate(costs.save, weight=weight)
        self.load = CostEstimate(costs.load_of(recovery), weight=weight)
        self.reschedule = CostEstimate(costs.reschedule_of(recovery), weight=weight)
        self.risk_spent = 0.0
        self.position_hours = 0.0
        self.feasible = True
        self.interval_hours = job.total_hours
        self._outlook: Outlook | None = None
        self.replan(age_hours=0.0, pls=0.0)

    def advance(self, position_hours: float) -> None:
        """Note that the job has come to `position_hours` of its work, under the plan in force.

        Raises ValueError for a position before the last one.
        """
        hours = position_hours - self.position_hours
        if not 0 <= hours < math.inf:
            raise ValueError(
                f"position_hours must be finite and at least {self.position_hours}, got {position_hours}"
            )
        if self._outlook is not None:
            then = hazard(self._outlook, np.array([hours]), np.array([self.interval_hours]))
            self.risk_spent += float(then[0])
        self.mtbf.observe(hours)
        self.position_hours = position_hours
        self._outlook = None

    def rewind(self, position_hours: float) -> None:
        """Go on from an earlier position, where a full recovery has put the job; what was learnt stays."""
        self.position_hours = position_hours
        self._outlook = None

    def replan(self, *, age_hours: float, pls: float) -> float:
        """Plan from here on and return `interval_hours`.

        `age_hours`: work since the last complete save; `pls`: lost so far. Full recovery: the optimum of the
        estimated costs and MTBF.
        """
        job = self._job
        full = optimal_full_interval(
            Job(total_hours=job.total_hours, mtbf_hours=self.mtbf.hours, shards=job.shards),
            Costs(save=max(self.save.hours, 1e-12), load=0.0, reschedule=0.0),
        )
        full = min(full, job.total_hours)
        remaining = job.total_hours - self.position_hours
        if self._recovery == "full":
            self.interval_hours = full
            return full
        if remaining <= 1e-9 * job.total_hours:
            return self.interval_hours
        lost = pls / self._target_pls * self._budget_hours
        outlook = Outlook(
            budget=np.array([self._budget_hours - lost]),
            remaining=np.array([remaining]),
            age=np.array([min(max(age_hours, 0.0), self.position_hours)]),
            shape=np.array([self.mtbf.shape]),
            scale=np.array([self.mtbf.scale_hours]),
            steady_hours=self._steady_hours,
        )
        interval, possible = planned_intervals(
            outlook,
            miss=1.0 - self.settings.probability,
            spent=np.array([self.risk_spent]),
            least_interval=np.array([self.settings.least_interval_hours or full]),
            exhausted_interval=self._exhausted_hours,
        )
        self.interval_hours, self.feasible, self._outlook = float(interval[0]), bool(possible[0]), outlook
        return self.interval_hours

    def state_dict(self) -> dict[str, Any]:
        """Return what was learnt and the plan in force, as JSON values."""
        return {
            "mtbf": self.mtbf.state_dict(),
            "save": self.save.state_dict(),
            "load": self.load.state_dict(),
            "reschedule": self.reschedule.state_dict(),
            "risk_spent": self.risk_spent,
            "position_hours": self.position_hours,
            "interval_hours": self.interval_hours,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; call `replan` next. Raises ValueError, KeyError for others."""
        for name in ("risk_spent", "position_hours", "interval_hours"):
            check_number("LoopState", name, state[name], positive=name == "interval_hours")
        for name in ("mtbf", "save", "load", "reschedule"):
            getattr(self, name).load_state_dict(state[name])
        self.risk_spent = state["risk_spent"]
        self.position_hours = state["position_hours"]
        self.interval_hours = state["interval_hours"]
        self._outlook = None
