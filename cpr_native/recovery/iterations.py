"""Saves paced by what a failure would cost in iterations: interval and fraction follow the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.iteration_cost import IterationLoop, IterationLoopState, Movement
from cpr_native.overhead import Costs, Job, MtbfEstimate, Plan
from cpr_native.policy import Policy, Scar, Table, most_changed_rows, prioritised_tables
from cpr_native.recovery.report import RecoveryReport, SaveReport
from cpr_native.recovery.saves import Saves
from cpr_native.shard import Shard

_SECONDS = 3600.0
# Rows whose age is kept; of more every second, third, ... row is.
_SAMPLE = 1 << 17


class SavedAges:
    """When the rows of the prioritised tables were last saved, and how far they are from that; of a sample.

    `tables`: of the engine; `policy`: whose prioritised tables are meant; `shards`: their rows.
    """

    def __init__(self, tables: Sequence[Table], policy: Scar, shards: Sequence[Shard]) -> None:
        kept = prioritised_tables(tables, policy.row_share)
        rows = sum(tables[table].num_embeddings for table in kept)
        self._stride = -(-rows // _SAMPLE)
        self._shards = shards
        self._saved = {
            table: np.zeros(len(range(0, tables[table].num_embeddings, self._stride)), np.int64)
            for table in kept
        }
        self._seen: dict[int, tuple[NDArray[np.float32], NDArray[np.int64]]] = {}
        self._before: dict[int, tuple[NDArray[np.float32], int]] = {}

    def all_saved(self, step: int) -> None:
        """Note that every row's copy is as of `step`."""
        for saved in self._saved.values():
            saved[:] = step
        self._seen.clear()
        self._before.clear()

    def restored(self, shards: Sequence[int], step: int) -> None:
        """Note that the copies of the rows of `shards` were made anew at `step`."""
        for row_range in (row_range for number in shards for row_range in self._shards[number].ranges):
            if row_range.table in self._saved:
                begin, end = (-(-row // self._stride) for row in (row_range.begin, row_range.end))
                self._saved[row_range.table][begin:end] = step
                self._before.pop(row_range.table, None)

    def seen(self, table: int, distances: NDArray[np.float32], *, step: int, fraction: float) -> None:
        """Take the distances of a table's rows, [rows], at a save of `fraction` of them at `step`.

        Rows that were never saved, or are not finite, say nothing about movement: they are left out. Of a
        table of which the fraction isn't one row, ranked against others, a row was saved when it is nearer
        to its copy than it was.
        """
        sample = distances[:: self._stride]
        saved = self._saved[table]
        few = fraction * len(distances) < 1
        if few and table in self._before:
            before, at = self._before[table]
            saved[sample < before] = at
        ages = step - saved
        known = (sample < np.finfo(np.float32).max) & (ages > 0)
        self._seen[table] = (sample[known], ages[known])
        if few:
            self._before[table] = (sample, step)
        else:
            self._before.pop(table, None)
            saved[most_changed_rows(sample, max(1, int(fraction * len(sample))))] = step

    def movement(self) -> Movement | None:
        """Return how the rows moved up to the last save whose distances were seen; None without any."""
        if not self._seen or not any(len(distances) for distances, _ in self._seen.values()):
            return None
        distances = np.concatenate([distances for distances, _ in self._seen.values()])
        ages = np.concatenate([ages for _, ages in self._seen.values()])
        return Movement(distances, ages, scale=float(self._stride))


class IterationPace:
    """Says when a save is due and of what fraction; called by the training thread.

    `policy`: a `Scar`, whose distances say how the rows move; `plan`, `job`, `costs`, `samples_per_hour`:
    what the manager was given or has planned, which gives interval and fraction until the losses that
    `observe` is told support a choice. Then each commit and each recovery chooses both anew; the interval
    counts from the last save that was due. Only rows of prioritised tables are in the prediction. Raises
    ValueError for another policy or distance.
    """

    def __init__(
        self,
        settings: IterationLoop,
        *,
        policy: Policy,
        plan: Plan,
        job: Job,
        costs: Costs,
        samples_per_hour: float,
        tables: Sequence[Table],
        shards: Sequence[Shard],
    ) -> None:
        if not isinstance(policy, Scar):
            why = f" (planned in place of a partial policy: {plan.reason})" if policy.name == "full" else ""
            raise ValueError(
                f"IterationLoop needs the distances of a Scar policy, got {type(policy).__name__}{why}"
            )
        if policy != Scar(fraction=policy.fraction, row_share=policy.row_share):
            raise ValueError(f"IterationLoop predicts from L2 distances, got {policy}")
        self._samples_per_hour = samples_per_hour
        self._ages = SavedAges(tables, policy, shards)
        self.interval_samples = max(1, round(policy.interval_hours(plan) * samples_per_hour))
        self.loop = IterationLoopState(
            settings,
            save_seconds=costs.save * _SECONDS,
            reload_seconds=(costs.load_of("partial") + costs.reschedule_of("partial")) * _SECONDS,
            lost_share=job.failed_shards / job.shards,
            interval=self.interval_samples,
            fraction=policy.fraction,
        )
        self.mtbf = MtbfEstimate(job.mtbf_hours, weight=settings.mtbf_weight)
        self._writing_seconds = 0.0
        self._steps = 0
        self._samples = 0
        self._observed = 0
        self.last = 0
        self._seen = 0

    @property
    def observes(self) -> bool:
        """Whether it makes use of losses."""
        return True

    def observe(self, loss: float) -> None:
        """Take the loss of the next step."""
        self.loop.observe(loss)

    def distances(self, table: int, distances: NDArray[np.float32]) -> None:
        """Take the distances of a table's rows from their copies, [rows], that a save now chooses by."""
        self._ages.seen(table, distances, step=self._steps, fraction=self.loop.fraction)

    def step(self, before: int, samples: int, saves: Saves, pls: float) -> bool:
        """Go on from `before` to `samples` and return whether a save is due; new commits are planned for."""
        self._steps += 1
        self._samples = samples
        if len(saves.committed) > self._seen:
            for report in saves.committed[self._seen :]:
                self._enter(report)
            self._seen = len(saves.committed)
            self._work(samples)
            self._replan(saves)
        if samples < self.last + self.interval_samples:
            return False
        self.last = samples
        return True

    def _enter(self, report: SaveReport) -> None:
        """Enter a save: its cost, and that a base or delta took every row that had moved."""
        priority = report.kind == "priority"
        if not priority:
            self._ages.all_saved(report.step)
        timed = self.loop.settings.measure_costs and report.reason in ("due", "requested")
        if timed and report.kind != "delta":
            self.loop.save.observe(self.loop.fraction if priority else 1.0, report.stall_seconds)
            self._writing_seconds = report.seconds

    def _work(self, samples: int) -> None:
        """Count the work up to `samples`, each hour of it once."""
        if samples > self._observed:
            self.mtbf.observe((samples - self._observed) / self._samples_per_hour)
            self._observed = samples

    def _replan(self, saves: Saves) -> None:
        movement = self._ages.movement()
        if movement is not None and self._steps:
            of_a_step = self._samples / self._steps
            seconds = of_a_step / self._samples_per_hour * _SECONDS
            choice = seconds and self.loop.replan(
                movement,
                mtbf_seconds=self.mtbf.hours * _SECONDS,
                seconds_per_iteration=seconds,
                writing_seconds=self._writing_seconds,
            )
            if choice:
                self.interval_samples = max(1, round(self.loop.interval * of_a_step))
        self._take_over(saves)

    def _take_over(self, saves: Saves) -> None:
        if isinstance(saves.policy, Scar) and saves.policy.fraction != self.loop.fraction:
            saves.policy = replace(saves.policy, fraction=self.loop.fraction)

    def recovered(self, report: RecoveryReport, saves: Saves, pls: float) -> None:
        """Choose anew after a recovery. A restart counts as no failure: it may have been wanted."""
        if report.restart:
            self._ages.all_saved(report.step)
            self._steps, self._samples, self._observed = report.step, report.samples, report.samples
            self.last = report.samples
        else:
            self._work(report.samples)
            self.mtbf.failed()
            self._ages.restored(report.shards, report.step)
        self.loop.perturbed()
        self._replan(saves)

    def state_dict(self) -> dict[str, Any]:
        """Return what a commit notes, as JSON values."""
        noted = {"mtbf": self.mtbf.state_dict(), "interval_samples": self.interval_samples}
        return {"iteration_loop": {**noted, "loop": self.loop.state_dict()}}

    def load_state_dict(self, info: Mapping[str, Any]) -> None:
        """Go on from what a commit noted; without such a note the estimates begin with their priors."""
        noted = info.get("iteration_loop")
        if noted is not None:
            self.loop.load_state_dict(noted["loop"])
            self.mtbf.load_state_dict(noted["mtbf"])
            self.interval_samples = max(1, int(noted["interval_samples"]))
