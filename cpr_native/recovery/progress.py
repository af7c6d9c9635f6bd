"""Where a job is: what its manager has saved, lost and planned so far."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_native.iteration_cost import IterationLoop
from cpr_native.overhead import ClosedLoop, Costs, Job, Plan
from cpr_native.policy import Policy, Table
from cpr_native.recovery.iterations import IterationPace
from cpr_native.recovery.losses import Losses
from cpr_native.recovery.members import DenseMembers
from cpr_native.recovery.pace import Pace
from cpr_native.recovery.report import SaveReport
from cpr_native.recovery.saves import Saves
from cpr_native.shard import Shard


class Progress(DenseMembers):
    """The part of a manager that tells of its job."""

    pace: Pace | IterationPace
    _saves: Saves
    _losses: Losses

    @property
    def running(self) -> bool:
        """Whether it has started or resumed and is not closed."""
        return self._saves.writer is not None

    @property
    def policy(self) -> Policy:
        """The policy in force: `Full` after a failed benefit check, the fraction that a loop has chosen."""
        return self._saves.policy

    @property
    def interval_samples(self) -> int:
        """Samples between saves."""
        return self.pace.interval_samples

    @property
    def observes(self) -> bool:
        """Whether `observe` makes use of losses: the number of one on a GPU has to be waited for."""
        return self.pace.observes

    @property
    def saving(self) -> bool:
        """Whether a save is in flight; the `step` or `flush` after its end enters it in `saves`."""
        return self._saves.busy

    @property
    def pls(self) -> float:
        """Portion of lost lookups so far, of all lookups of the job: its PLS. 0 without lookups."""
        return self._losses.pls

    @property
    def coalesced(self) -> int:
        """Saves that were due or asked for while one was in flight."""
        return self._saves.coalesced

    @property
    def saves(self) -> tuple[SaveReport, ...]:
        """The committed saves of this process, in order."""
        return tuple(self._saves.committed)


def pace_of(
    loop: ClosedLoop | IterationLoop | None,
    *,
    policy: Policy,
    plan: Plan,
    job: Job,
    costs: Costs,
    target_pls: float,
    samples_per_hour: float,
    tables: Sequence[Table],
    shards: Sequence[Shard],
) -> Pace | IterationPace:
    """Return what says when saves are due; raises what the two kinds raise."""
    if isinstance(loop, IterationLoop):
        return IterationPace(
            loop,
            policy=policy,
            plan=plan,
            job=job,
            costs=costs,
            samples_per_hour=samples_per_hour,
            tables=tables,
            shards=shards,
        )
    return Pace(
        loop,
        policy=policy,
        plan=plan,
        job=job,
        costs=costs,
        target_pls=target_pls,
        samples_per_hour=samples_per_hour,
    )
