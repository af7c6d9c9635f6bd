"""`RecoveryManager`: the few lines that make a training loop fault tolerant."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

import torch

from cpr_native.overhead import Costs, Job, Plan
from cpr_native.policy import Policy, SaveKind
from cpr_native.recovery.report import RecoveryReport, SaveReport
from cpr_native.shard import Shard
from cpr_native.store import Store


class RecoveryManager:
    """Save a model when due, in the background, and recover it after a failure of some shards.

    `model`: holds exactly one module with an `engine` (EmbeddingBagCollection, EmbeddingBag or Embedding); `store`: an
    open `Store`; `policy`: the wanted policy; `job`, `costs`, `target_pls`: what the planner needs (`job.shards` is the
    number of shards); `total_samples`: samples of the whole job; `samples_per_hour`: None for
    total_samples / job.total_hours; `dense_optimizer`: of the dense parameters; `loader`: anything with `state_dict()`
    and `load_state_dict()`, its data position is a part of each save; `background`: False writes each save before
    `step()` returns. Cuts are step numbers: no clock decides anything. When the benefit check fails for a partial
    policy, `Full()` takes its place (see `policy` and `plan.reason`).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        store: Store,
        *,
        policy: Policy,
        job: Job,
        costs: Costs,
        total_samples: int,
        target_pls: float = 0.1,
        samples_per_hour: float | None = None,
        dense_optimizer: torch.optim.Optimizer | None = None,
        loader: object | None = None,
        background: bool = True,
    ) -> None: ...

    # state
    plan: Plan
    policy: Policy                      # in force: Full() where the benefit check failed
    shards: tuple[Shard, ...]
    steps: int                          # steps trained (goes back on a rollback)
    samples: int                        # samples trained (goes back on a rollback)
    samples_per_hour: float
    interval_samples: int               # samples between saves
    pls: float                          # realised so far; priority policies: lost lookups / all lookups
    coalesced: int                      # saves that were due while one was in flight
    saves: tuple[SaveReport, ...]       # committed, in order
    recoveries: tuple[RecoveryReport, ...]

    def start(self) -> None:
        """Commit the recovery point before any training; idempotent; the first `step()` calls it otherwise."""

    def step(self, samples: int) -> None:
        """Count one finished training step of `samples` samples and begin a save when one is due."""

    def save(self, kind: SaveKind | None = None, *, wait: bool = False) -> bool:
        """Begin a save now; False when one is in flight (coalesced)."""

    def flush(self) -> None:
        """Wait for the save in flight; raises its error."""

    def close(self) -> None:
        """Save what is not yet saved (a delta), wait for it and end the writer thread."""

    def recover(self, failed_shards: Sequence[int]) -> RecoveryReport:
        """Discard the failed shards' rows and recover: partial, or full with everything rolled back."""

    def resume(self, *, required: bool = False) -> RecoveryReport | None:
        """Restore everything from the store in a new process; None on an empty store (`required`: raises)."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
