"""`ClusterManager`: what `RecoveryManager` is to local tables, for those in the shards of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import torch

from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.cuts import check_policy
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.errors import CprError
from cpr_native.overhead import ClosedLoop, Costs, Job, Plan, plan
from cpr_native.policy import Full, Policy, SaveKind
from cpr_native.recovery import restore
from cpr_native.recovery.dense import DenseState, Stateful
from cpr_native.recovery.gang import ALONE, Agreement, Gang
from cpr_native.recovery.ledger import LookupLedger
from cpr_native.recovery.losses import Losses
from cpr_native.recovery.pace import Pace
from cpr_native.recovery.report import Cut, RecoveryReport, SaveReport
from cpr_native.sharded.collection import ShardedEmbeddingBagCollection
from cpr_native.sharded.going_on import GoesOn
from cpr_native.sharded.saves import ClusterSaves

_STARTS = 5


class ClusterManager(GoesOn):
    """Save a job whose tables lie in shards, at one step of all of them, and go on after their failures.

    `model`: holds one `ShardedEmbeddingBagCollection`; `spec`: of the run; `policy`, `job`, `costs`,
    `total_samples`, `target_pls`, `samples_per_hour`, `dense_optimizer`, `loader`, `app_state`, `background`,
    `loop`: as of `RecoveryManager` (`job.shards` is the number of shards; `Scar` is refused: shards keep no
    copy of their rows as last saved). `keep`: exact points that retention leaves (None: all).
    `save_seconds`: that a save may take before it is given up; `patience`: that shards are waited for in a
    full recovery.

    Under a partial policy a lost shard comes back by itself, with its newest committed rows, while the call
    that noticed waits; `recoveries` has a report of it. Under full recovery that call raises ShardLost, and
    `recover()` takes all shards, the dense side and the data position back to one step; `surviving()` does so
    for the body of a loop. Of several trainers (`clients.ranks`, under `torch.distributed`) each makes a
    manager with the same settings, and all call its methods at the same points; `samples` are those of all.
    With one trainer the lookups lost, and so the PLS, are counted exactly; with several, those of a loss
    are this rank's times the number of ranks.
    Used by one thread. Raises ValueError for settings that cannot work.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        spec: ClusterSpec,
        *,
        policy: Policy,
        job: Job,
        costs: Costs,
        total_samples: int,
        target_pls: float = 0.1,
        samples_per_hour: float | None = None,
        dense_optimizer: torch.optim.Optimizer | None = None,
        loader: Stateful | None = None,
        app_state: Mapping[str, Stateful] | None = None,
        background: bool = True,
        keep: int | None = None,
        loop: ClosedLoop | None = None,
        save_seconds: float = 60.0,
        patience: float = 60.0,
    ) -> None:
        if job.shards != spec.shards:
            raise ValueError(f"job.shards: expected {spec.shards} as of the spec, got {job.shards}")
        check_policy(policy)
        self._spec = spec
        self._module = only_collection(model)
        self._clients = self._module.clients
        self.plan: Plan = plan(job, costs, target_pls, fraction=policy.fraction)
        falls_back = policy.recovery == "partial" and self.plan.strategy == "full"
        chosen: Policy = Full() if falls_back else policy
        ranks = self._clients.ranks
        self._gang: Agreement = ALONE if ranks == 1 else Gang(self._clients.rank, ranks)
        self._store = spec.open_store()
        self._coordinator: Coordinator | None = None
        if self._clients.rank == 0:
            self._coordinator = Coordinator(
                self._store, spec.schema, spec.placement, run_id=spec.run_id, keep=keep
            )
        self._dense = DenseState(
            model, (), optimizer=dense_optimizer, loader=loader, app_state=app_state, gang=self._gang
        )
        self._ledger = LookupLedger(spec.shards)
        self._losses = Losses(self._ledger, total_samples=total_samples)
        self.samples_per_hour = samples_per_hour or total_samples / job.total_hours
        self.pace = Pace(
            loop, policy=chosen, plan=self.plan, job=job, costs=costs, target_pls=target_pls,
            samples_per_hour=self.samples_per_hour,
        )  # fmt: skip
        self._saves = ClusterSaves(
            self._clients, self._coordinator, self._dense, chosen, self._ledger, self._gang,
            seconds=save_seconds, background=background,
        )  # fmt: skip
        self._patience = patience
        self._running = False
        self._clients.resumes = chosen.recovery == "partial"
        self._clients.on_lost = self._lost
        self.recoveries: list[RecoveryReport] = []
        self.steps = 0
        self.samples = 0

    @property
    def running(self) -> bool:
        """Whether it has started or resumed and is not closed."""
        return self._running

    @property
    def policy(self) -> Policy:
        """The policy in force: `Full` after a failed benefit check."""
        return self._saves.policy

    @property
    def pls(self) -> float:
        """Portion of lost lookups so far, of all lookups of the job."""
        return self._losses.pls

    @property
    def saves(self) -> tuple[SaveReport, ...]:
        """The committed saves, in order; in the process of rank 0."""
        return tuple(self._saves.committed)

    @property
    def missed(self) -> int:
        """Saves that came to nothing because a shard was lost or too slow; later ones have their rows."""
        return self._saves.missed

    def start(self) -> None:
        """Commit the base that a failure before the first due save goes back to; no effect once started.

        Returns when it is durable, also where shards are lost meanwhile. Raises ValueError when the store
        holds commits: `resume()` goes on from them; CprError when it can't be made.
        """
        if self._running:
            return
        restore.check_empty(self._store)
        self._running = True
        for _ in range(_STARTS):
            self._begin("base", "start")
            self.flush()
            if self._gang.from_one(self._saves.exact_step >= 0, 0):
                return
            self._handles()  # a lost one is waited for
            self._clients.begin(self._clients.generation, self._clients.step - 1)
        self._running = False
        raise CprError(f"{self._store}: no base could be committed in {_STARTS} tries")

    def step(self, samples: int) -> None:
        """Count a finished training step of `samples` samples, and begin a save when one is due.

        Called after the backward that has sent the step's update. Raises the error of a save that failed.
        """
        samples = index(samples)
        if samples < 0:
            raise ValueError(f"samples must be at least 0, got {samples}")
        self.start()
        before = self.samples
        self.steps += 1
        self.samples += samples
        self._saves.settle(wait=False)
        if self.pace.step(before, self.samples, self._saves, self.pls):  # type: ignore[arg-type]
            self._saves.mark_due()
        self._saves.raise_error()
        if self._saves.due and self._begin(None, "due"):
            self._saves.due = False
        if self._gang.shards > 1:
            self._saves.due = False  # begun by all at the same step, or not at all

    def save(self, kind: SaveKind | None = None, *, wait: bool = False) -> bool:
        """Begin a save of `kind` (None: the policy's) now; False when one is in flight or can't be made.

        `wait`: for the save in flight first, and for this one then; raises its error.
        """
        if wait:
            self.flush()
        begun = self._begin(kind, "requested")
        if wait:
            self.flush()
        return begun

    def flush(self) -> None:
        """Wait for the save in flight; raises its error."""
        self._saves.flush()

    def _begin(self, kind: SaveKind | None, reason: Any) -> bool:
        group = self._module.fused_optimizer.param_groups[0]
        settings = {name: value for name, value in group.items() if name != "params"}
        info = {"policy": self.policy.name, "pls": self.pls, "steps": self.steps, **self.pace.state_dict()}
        cut = Cut(step=self.steps, samples=self.samples, info=info)
        return self._saves.begin(kind, reason, cut, settings)

    def close(self) -> None:
        """Commit what no exact point has yet, as a delta, and stop; no effect when never started."""
        if self._running:
            self.flush()
            if self._gang.from_one(self._saves.exact_step != self._clients.step - 1, 0):
                self._begin("delta", "close")
                self.flush()
            self._clients.settle(self._patience)
        self._stop()

    def _stop(self) -> None:
        self._running = False
        self._saves.close()
        if self._coordinator is not None:
            self._coordinator.close()

    def __enter__(self) -> ClusterManager:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self._stop()


def only_collection(model: torch.nn.Module) -> ShardedEmbeddingBagCollection:
    """Return the collection of a model; raises ValueError unless it has one."""
    found = [module for module in model.modules() if isinstance(module, ShardedEmbeddingBagCollection)]
    if len(found) != 1:
        raise ValueError(f"model: expected one ShardedEmbeddingBagCollection, got {len(found)}")
    return found[0]
