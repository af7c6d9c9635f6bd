"""`RecoveryManager`: the few lines that make a training loop fault tolerant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import index

import torch

from cpr_native.iteration_cost import IterationLoop
from cpr_native.overhead import ClosedLoop, Costs, Job, Plan, plan
from cpr_native.policy import Full, Policy, SaveKind
from cpr_native.recovery import restore
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState, Stateful
from cpr_native.recovery.gang import ALONE, gang_of
from cpr_native.recovery.ledger import LookupLedger
from cpr_native.recovery.losses import Losses
from cpr_native.recovery.progress import pace_of
from cpr_native.recovery.recovering import Recovering
from cpr_native.recovery.report import Cut, RecoveryReport
from cpr_native.recovery.saves import Saves
from cpr_native.recovery.shared_state import SharedState
from cpr_native.shard import Shard, make_shards
from cpr_native.shared import SharedMemory
from cpr_native.store import CheckpointStore


class RecoveryManager(Recovering):
    """Save a model when due, in the background, and recover it after a failure of some shards.

    `model`: holds embedding modules of this package, any number of any kind, with one kind of optimizer, or
    is attached; a commit is of all of them at one step. `store`: an open checkpoint directory; `policy`: the
    wanted policy; `job`, `costs`, `target_pls`: what the planner needs (`job.shards` is the number of
    shards); `total_samples`: samples of the whole job; `samples_per_hour`: None for total_samples /
    job.total_hours; `dense_optimizer`: of the dense parameters; `loader`: anything with `state_dict()` and
    `load_state_dict()`, its data position is a part of each save (`fit` sets it); `app_state`: anything else
    that has them, by name (learning-rate schedulers, a `torch.amp.GradScaler`), a part of each save too;
    `background`: False writes each save before `step()` returns; `keep`: exact points that retention leaves
    on disk after each base (None: all); `compact`: in the background, chains of more increments are folded
    into a base, or one priority commit (None: never); `quantise`: 8 or 4 bits for each weight in deltas and
    priority saves, which a recovery gives back within a bound (None: to the bit); `loop`: plans the interval
    anew after each save and recovery, for a target PLS or, by `IterationLoop` and with `Scar`, interval and
    fraction from the losses that `observe` is told (see `pace.loop`; its state is in each commit); `shared`:
    what all tables were built in, where each `step` leaves the job for the next process (see `SharedMemory`);
    `shard`, `shards`: rank and size of the `torch.distributed` job whose every process holds other tables,
    those of one shard, and makes a manager with the same settings (see `Recovering`).
    Cuts are step numbers: no clock decides anything.
    The tables' fused optimizer is saved with the rows, all its scalars too (learning rate, steps,
    `grad_scale`, ...); full recovery puts them back, partial leaves them.

    When the benefit check fails for a partial policy, `Full()` takes its place (see `policy` and
    `plan.reason`). An error of a background save is raised by the next `step`, `save`, `flush` or `close`;
    its rows stay dirty and are in the next save. A context manager that closes; after an error in the body
    it only waits for the save in flight. `recoveries` lists the recoveries of this process in order. Raises
    ValueError for settings that cannot work, before anything is written.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        store: CheckpointStore,
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
        compact: int | None = None,
        quantise: int | None = None,
        loop: ClosedLoop | IterationLoop | None = None,
        shared: SharedMemory | None = None,
        shard: int | None = None,
        shards: int | None = None,
    ) -> None:
        if samples_per_hour is not None and not 0 < samples_per_hour < math.inf:
            raise ValueError(f"samples_per_hour must be finite and above 0, got {samples_per_hour}")
        self._gang = gang_of(shard, shards, job)
        self._tables = TrainedCollection(model, self._gang)
        self.plan: Plan = plan(job, costs, target_pls, fraction=policy.fraction)
        falls_back = policy.recovery == "partial" and self.plan.strategy == "full"
        chosen: Policy = Full() if falls_back else policy
        self._tables.check(chosen)
        counted = any(self._tables.looked_up)
        if isinstance(loop, ClosedLoop) and chosen.recovery == "partial" and not counted:
            raise ValueError(
                "loop: ClosedLoop keeps a PLS, which is counted in lookups, and the model has none: use "
                "IterationLoop() with Scar()"
            )
        self.samples_per_hour = samples_per_hour or total_samples / job.total_hours
        self._store = store
        self._placement = self._tables.placement(job.shards)
        self.shards: tuple[Shard, ...] = make_shards(
            self._tables.engine, store, self._tables.own, self._placement
        )
        self._dense = DenseState(
            model, self._tables.keys, optimizer=dense_optimizer, loader=loader, app_state=app_state,
            row_states=self._tables.row_states, gang=self._gang or ALONE,
        )  # fmt: skip
        self._shared = None if shared is None else SharedState(shared, self._tables, self._dense)
        ledger = LookupLedger(job.shards)
        self.pace = pace_of(
            loop, policy=chosen, plan=self.plan, job=job, costs=costs, target_pls=target_pls,
            samples_per_hour=self.samples_per_hour, tables=self._tables.engine.tables, shards=self.shards,
        )  # fmt: skip
        self._saves = Saves(
            self._tables, self._dense, chosen, self._placement,
            ledger if chosen.recovery == "partial" else None,
            background=background, keep=keep, compact=compact, quantise=quantise,
            distances=self.pace.distances, gang=self._gang,
        )  # fmt: skip
        self._losses = Losses(ledger, total_samples=total_samples, gang=self._gang or ALONE)
        self._half = restore.HalfRestored()
        self.recoveries: list[RecoveryReport] = []
        self.steps = 0
        self.samples = 0

    def start(self) -> None:
        """Begin the base that a failure before the first due save goes back to; no effect once started.

        The first `step()` calls it otherwise, and that step is then in it. Raises ValueError when the store
        holds commits: `resume()` goes on from them.
        """
        if not self.running:
            self._open_empty()
            self._saves.begin_due(self._cut(), "start")
            self._leave()

    def _open_empty(self) -> None:
        restore.check_empty(self._store)
        self._begin_anew()
        self._saves.open(self._store)
        self._saves.due = True

    def step(self, samples: int) -> None:
        """Count a finished training step of `samples` samples and begin a save when one is due.

        Called after the optimizer's step. A save that is due while one is in flight starts at the first
        step after it. Raises ValueError for a negative `samples`, TypeError for one that is no whole number,
        CprError after a recovery that was interrupted, and the error of a save that failed (the step is
        counted).
        """
        samples = index(samples)
        if samples < 0:
            raise ValueError(f"samples must be at least 0, got {samples}")
        first = not self.running
        if first:
            self._open_empty()
        self._half.check()
        before = self.samples
        self.steps += 1
        self.samples += samples
        if first:
            self._saves.begin_due(self._cut(), "start")
        self._saves.settle(wait=False)
        if self.pace.step(before, self.samples, self._saves, self.pls):
            self._saves.mark_due()
        self._stepped()
        self._saves.raise_error()
        self._saves.begin_due(self._cut())
        self._saves.raise_error()

    def observe(self, loss: float) -> None:
        """Tell an `IterationLoop` the loss of the step that is next; no other makes use of it."""
        self.pace.observe(loss)

    def save(self, kind: SaveKind | None = None, *, wait: bool = False) -> bool:
        """Begin a save of `kind` (None: the policy's) now; False when one is in flight.

        `wait`: waits for the save in flight first and for this one then. Raises ValueError for a kind that
        the policy cannot save, and the error of a save that failed.
        """
        self._saves.require_writer()
        self._half.check()
        return self._saves.request(kind, self._cut(), wait=wait)

    def flush(self) -> None:
        """Wait for the save in flight; raises its error."""
        self._saves.flush()

    def close(self) -> None:
        """Commit what no exact point has yet, as a delta, and stop; no effect when closed or never started.

        Raises the error of a save that failed; the manager is then still open.
        """
        if self.running:
            self.flush()
            self._half.check()
            if self._anywhere(self._saves.exact_step != self.steps):
                self._saves.begin("delta", "close", self._cut())
                self.flush()
            self._leave()
        self._saves.close()

    def _cut(self) -> Cut:
        info = {"policy": self.policy.name, "pls": self._losses.pls, **self.pace.state_dict()}
        return Cut(step=self.steps, samples=self.samples, info=info)

    def __enter__(self) -> RecoveryManager:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self._saves.close()
