"""What trainers and shards send each other: plain frozen data that any transport can pickle, and its errors.

Steps count from 1. A shard holds of every table one range of global rows; messages name its rows by *local*
ids, global minus begin of the range. Arrays are borrowed for the call: neither side writes to one that it
received (some transports give read-only ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CprError
from cpr_native.policy import Policy, SaveKind


class ProtocolError(CprError):
    """A message that the shard refuses; nothing was changed by it."""


class WrongIncarnation(ProtocolError):
    """The message is for another life of the shard's process: reconnect."""


class WrongGeneration(ProtocolError):
    """The message is of an older group of trainers, or of one that the shard was not told of."""


class StepGap(ProtocolError):
    """An update came before the one that must precede it: resend from the watermark on."""


class QueueFull(ProtocolError):
    """A rank is too far ahead of the others: its update was not taken and is to be sent again later."""


class CutMissed(ProtocolError):
    """A cut that can't be made, or was given up: too late, past its deadline, or another one in the way."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Who sends what for when.

    `generation`: of the trainer group, from 1; it grows when trainers restart or roll back. `step`: the
    training step, from 1. `rank`: of the trainer in its group. `incarnation`: of the shard, as expected.
    """

    generation: int
    step: int
    rank: int
    incarnation: int


@dataclass(frozen=True, eq=False)
class RowIds:
    """Rows of one shard: unique ones of each table in turn.

    `counts`: int64 [tables of the cluster], how many of each table; `rows`: int32 [u], local ids, ascending
    and unique within a table, u the sum of `counts`. Aliases what it is made of.
    """

    counts: NDArray[np.int64]
    rows: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each table's rows begin, int64 [tables + 1]."""
        found = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum(self.counts, out=found[1:])
        return found

    def size(self, dims: NDArray[np.int64]) -> int:
        """Return how many numbers the rows have, `dims` (int64 [tables]) of each table."""
        return int((self.counts * dims).sum())


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to an update: it was taken, and `applied` is the newest step of that rank that is applied.

    A rank keeps its updates of steps above `applied`: they die with the shard's process.
    """

    incarnation: int
    applied: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The answer to `resume`: `lost` steps of that rank were acknowledged and are not in the shard's rows.

    Steps up to `watermark` count as applied from now on; the rank sends the next one.
    """

    incarnation: int
    watermark: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class CutRequest:
    """A snapshot to be begun after step `step` of all ranks and before the next one.

    `number`: names the cut, each number used once. `generation`, `incarnation`: as in `Tag`. `kind`: a base
    takes its place where the chain permits no other. `policy`: chooses the rows; None for those that `kind`
    says ("base" or "delta"). `save`: number of this due save, from 0, which policies ask for. `samples`,
    `info` (JSON values): of the job, noted in the commit. `seconds`: from now on until the commit must
    stand; later it is given up and its marks are merged back.
    """

    number: int
    generation: int
    incarnation: int
    step: int
    kind: SaveKind
    policy: Policy | None = None
    save: int = 0
    samples: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A shard's commit of a cut.

    `sequence`, `crc`: the commit in the shard's chain (`Ref`); `kind`: as it was committed; `rows`: taken, by
    table name; `lookups`: counts of these rows before they were cleared, summed; `bytes_written`: of its
    segments; `stall_seconds`: that updates waited for; `seconds`: from the begin of the snapshot to the
    commit.
    """

    shard: int
    incarnation: int
    number: int
    step: int
    kind: SaveKind
    sequence: int
    crc: int
    rows: Mapping[str, int]
    lookups: int
    bytes_written: int
    stall_seconds: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RollbackRequest:
    """Back to a shard's commit (`sequence`, `crc`) of step `step`, of which an exact restore is possible.

    `generation`: of the trainers from then on, above the present one, `ranks` of them; their first step is
    `step + 1`. `incarnation`: of the shard, as expected.
    """

    generation: int
    incarnation: int
    step: int
    ranks: int
    sequence: int
    crc: int


@dataclass(frozen=True, kw_only=True)
class ShardRecovery:
    """What the constructor of a shard's process did.

    `source`: "initial" rows (nothing was committed), "checkpoint", "memory" (shared memory was re-attached)
    or "resharded" (`ClusterSpec.source`). `watermarks`: per rank, the newest step that is in the rows.
    `rows`: read from commits;
    `reset`: rows that no commit has, back at their initial values; both by table name. `seconds`: that it
    took. `skipped`: damaged files that were passed over. `notes`: tables that a resharded checkpoint did not
    have, or has alone. `read_bytes`: of a resharded one. `refused`: why what was in shared memory was not
    used, None if it was or there was none.
    """

    shard: int
    incarnation: int
    source: str
    watermarks: tuple[int, ...]
    rows: Mapping[str, int]
    reset: Mapping[str, int]
    seconds: float
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read_bytes: int = 0
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShardStatus:
    """A shard as it is now.

    `watermarks`: newest applied step per rank; `received`: newest taken one; `rows`, `dirty`: by table name;
    `skipped`: steps with a gradient that was not finite; `memory`: bytes, as `Collection.memory`;
    `last_commit`: sequence number in its chain, None before the first; `last_step`: its step; `cut`: number
    of the one in flight; `error`: why it refuses all calls, None if it doesn't.
    """

    shard: int
    incarnation: int
    generation: int
    pid: int
    watermarks: tuple[int, ...]
    received: tuple[int, ...]
    rows: Mapping[str, int]
    dirty: Mapping[str, int]
    skipped: int
    memory: Mapping[str, int]
    last_commit: int | None
    last_step: int
    cut: int | None
    error: str | None
    recovery: ShardRecovery
