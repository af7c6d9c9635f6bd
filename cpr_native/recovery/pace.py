"""When a save is due, in samples: at a fixed interval, or at one that is planned anew while the job runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.overhead import ClosedLoop, Costs, Job, LoopState, Plan
from cpr_native.policy import Policy
from cpr_native.recovery.report import RecoveryReport, SaveReport
from cpr_native.recovery.saves import Saves

_SECONDS = 3600.0


class Pace:
    """Counts samples to the next save; called by the training thread.

    `policy`, `plan`, `job`, `costs`, `target_pls`: what the manager was given or has planned;
    `samples_per_hour`; `settings`: None for a fixed interval, in which a save is due at each multiple of
    `interval_samples`. Otherwise `loop` has the estimates, and each commit and each recovery plans
    `interval_samples` anew, counted from the last save that was due.
    """

    def __init__(
        self,
        settings: ClosedLoop | None,
        *,
        policy: Policy,
        plan: Plan,
        job: Job,
        costs: Costs,
        target_pls: float,
        samples_per_hour: float,
    ) -> None:
        self._policy = policy
        self._plan = plan
        self._samples_per_hour = samples_per_hour
        self.loop: LoopState | None = None
        self.interval_samples = self._samples(plan)
        self.last = 0
        self._seen = 0
        if settings is not None:
            ranked = policy.kind(0) == "priority"
            self.loop = LoopState(settings, job, costs, target_pls, recovery=policy.recovery, steady=ranked)
            self._take_over(self.loop)

    def _samples(self, plan: Plan) -> int:
        return max(1, round(self._policy.interval_hours(plan) * self._samples_per_hour))

    def _take_over(self, loop: LoopState) -> None:
        hours = loop.interval_hours
        self.interval_samples = self._samples(
            replace(self._plan, full_interval_hours=hours, partial_interval_hours=hours)
        )

    def _replan(self, loop: LoopState, samples: int, saves: Saves, pls: float) -> None:
        age = max(0, samples - saves.exact_samples) / self._samples_per_hour
        loop.replan(age_hours=age, pls=pls)
        self._take_over(loop)

    @property
    def observes(self) -> bool:
        """Whether it makes use of losses."""
        return False

    def observe(self, loss: float) -> None:
        """Take the loss of the next step, which this pace makes no use of."""

    def distances(self, table: int, distances: NDArray[np.float32]) -> None:
        """Take the distances that a save chooses by, which this pace makes no use of."""

    def step(self, before: int, samples: int, saves: Saves, pls: float) -> bool:
        """Go on from `before` to `samples` and return whether a save is due; new commits are planned for."""
        if self.loop is None:
            return samples // self.interval_samples > before // self.interval_samples
        if len(saves.committed) > self._seen:
            self.loop.advance(samples / self._samples_per_hour)
            for report in saves.committed[self._seen :]:
                self._observe(self.loop, report)
            self._seen = len(saves.committed)
            self._replan(self.loop, samples, saves, pls)
        if samples < self.last + self.interval_samples:
            return False
        self.last = samples
        return True

    def _observe(self, loop: LoopState, report: SaveReport) -> None:
        """Enter a save's cost; one of a fraction stands for one of everything, that many times dearer."""
        share = self._policy.fraction if report.kind == "priority" else 1.0
        only_small_tables = report.kind == "priority" and share == 1
        if loop.settings.measure_costs and report.reason in ("due", "requested") and not only_small_tables:
            loop.save.observe(report.stall_seconds / _SECONDS / share)

    def recovered(self, report: RecoveryReport, saves: Saves, pls: float) -> None:
        """Plan anew after a recovery. A restart counts as no failure: it may have been wanted."""
        if report.mode == "full":
            self.last = report.samples
        if self.loop is None:
            return
        if not report.restart:
            self.loop.advance((report.samples + report.lost_samples) / self._samples_per_hour)
            self.loop.mtbf.failed()
            if self.loop.settings.measure_costs:
                self.loop.load.observe(report.seconds / _SECONDS)
        self.loop.rewind(report.samples / self._samples_per_hour)
        self._replan(self.loop, report.samples, saves, pls)

    def state_dict(self) -> dict[str, Any]:
        """Return what a commit notes, as JSON values; nothing with a fixed interval."""
        return {} if self.loop is None else {"loop": self.loop.state_dict()}

    def load_state_dict(self, info: Mapping[str, Any]) -> None:
        """Go on from what a commit noted; without such a note the estimates begin with their priors."""
        if self.loop is not None and "loop" in info:
            self.loop.load_state_dict(info["loop"])
