"""What a coordinator promises, has committed and has gone back to."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_native.cluster.handle import ShardHandle
from cpr_native.cluster.messages import Committed, ShardRecovery
from cpr_native.policy import SaveKind
from cpr_native.store import RestorePoint


@dataclass(frozen=True, kw_only=True)
class GlobalCut:
    """A cut that every shard has promised: `number`, `request` without incarnation, and their handles."""

    number: int
    step: int
    kind: SaveKind
    samples: int
    handles: tuple[ShardHandle, ...]
    deadline: float
    started: float


@dataclass(frozen=True, kw_only=True)
class GlobalSave:
    """A point of the whole job: its commit in the global chain and those of the shards, in their order.

    `bytes_written`: of all segments; `stall_seconds`: the longest that updates of a shard waited;
    `seconds`: from the request to the commit; `retention_error`: why old points could not be removed.
    """

    sequence: int
    kind: SaveKind
    step: int
    samples: int
    shards: tuple[Committed, ...]
    bytes_written: int
    stall_seconds: float
    seconds: float
    retention_error: str | None = None

    @property
    def lookups(self) -> list[int]:
        """Counts of the rows that it holds, summed, of each shard."""
        return [shard.lookups for shard in self.shards]


@dataclass(frozen=True, kw_only=True)
class RolledBack:
    """A full recovery: the point, what each shard did, and what newer points were refused and why."""

    point: RestorePoint
    shards: tuple[ShardRecovery, ...]
    skipped: tuple[str, ...]
    seconds: float
