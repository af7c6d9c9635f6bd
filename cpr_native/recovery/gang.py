"""Agreement of the processes of one job: of one alone, or of several under `torch.distributed`."""

from __future__ import annotations

from datetime import timedelta
from operator import index
from typing import Any, TypeVar

import torch.distributed as dist

from cpr_native.errors import CprError
from cpr_native.overhead import Job

T = TypeVar("T")


class Agreement:
    """Agreement among the processes of a job; every method is called by all of them, at the same point.

    This one is of a process alone. `shard`: its number, `shards`: how many there are.
    """

    shard = 0
    shards = 1

    def gather(self, value: T) -> list[T]:
        """Return what every process has given, by shard; plain picklable values."""
        return [value]

    def from_one(self, value: T, shard: int) -> T:
        """Return what the process of `shard` has given."""
        return value

    def meet(self) -> None:
        """Return when all processes are here."""
        self.gather(None)


ALONE = Agreement()


class Gang(Agreement):
    """Agreement among the processes of the default process group, each with the tables of one shard.

    shard: number of this process's shard, its rank in the default process group; shards: their number, the
    size of the group. limit: seconds that one waits for the others.
    Raises ValueError where they are not, CprError without an initialised process group.
    """

    def __init__(self, shard: int, shards: int, *, limit: float = 120.0) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise CprError("shard, shards: expected torch.distributed to be initialised, by torchrun for one")
        expected = (dist.get_rank(), dist.get_world_size())
        if (index(shard), index(shards)) != expected:
            raise ValueError(
                f"shard, shards: expected rank and size of the process group, {expected}, got "
                f"{(shard, shards)}"
            )
        self.shard = shard
        self.shards = shards
        self.limit = limit
        # Of its own: objects are exchanged on the CPU, whatever the gradients are reduced with.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))

    def gather(self, value: T) -> list[T]:
        """See `Agreement`."""
        found: list[Any] = [None] * self.shards
        dist.all_gather_object(found, value, group=self._group)
        return found

    def from_one(self, value: T, shard: int) -> T:
        """See `Agreement`."""
        box = [value if self.shard == shard else None]
        dist.broadcast_object_list(box, src=shard, group=self._group)
        return box[0]  # type: ignore[return-value]


def gang_of(shard: int | None, shards: int | None, job: Job) -> Gang | None:
    """Return the gang of this process, None without `shard` and `shards`.

    Raises ValueError for one of them alone and unless `job` has as many shards, and what `Gang` raises.
    """
    if shard is None and shards is None:
        return None
    if shard is None or shards is None or shards != job.shards:
        raise ValueError(
            f"shard, shards: expected both, with job.shards ({job.shards}) shards, got {shard}, {shards}"
        )
    return Gang(shard, shards)
