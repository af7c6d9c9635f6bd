"""A checkpoint directory of a few kilobytes, and what a restore of it gives: for campaigns that damage it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CprError
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    StoredRows,
    StoreWriter,
    TableSchema,
)


def schema_of(rows: int, dim: int) -> CollectionSchema:
    """One table with row-wise Adagrad."""
    table = TableSchema(name="t", rows=rows, dim=dim, init_min=-0.5, init_max=0.5)
    return CollectionSchema(tables=(table,), optimizer="row_wise_adagrad")


@dataclass
class Tiny:
    """A job of one table: step s gives its rows the values s, s + 1/rows, ..."""

    path: Path
    rows: int = 2
    dim: int = 1
    shards: int = 1
    schema: CollectionSchema = field(init=False)
    placement: Placement = field(init=False)

    def __post_init__(self) -> None:
        self.schema = schema_of(self.rows, self.dim)
        self.placement = Placement.contiguous(self.schema, self.shards)

    def writer(self) -> StoreWriter:
        return CheckpointStore(self.path).writer(self.schema, self.placement, run_id="tiny")

    def save(self, writer: StoreWriter, kind: str, step: int, rows: Sequence[int] | None = None) -> None:
        """Commits rows (None: all) with the values of `step`."""
        chosen = range(self.rows) if rows is None else rows
        with writer.begin(kind, step=step, samples=step) as save:
            for shard in range(self.shards):
                begin, end = self.placement.row_range(self.schema, "t", shard)
                ids = np.array([row for row in chosen if begin <= row < end], np.int64)
                if len(ids):
                    value = (step + ids / self.rows).astype(np.float32)
                    save.add(
                        SegmentPart(
                            shard=shard,
                            table="t",
                            rows=ids,
                            weight=np.repeat(value[:, None], self.dim, axis=1),
                            state=value,
                            count=ids.astype(np.uint32),
                        )
                    )
            save.commit({"dense": np.full(self.dim, step, np.float32)})


def tiny_directory(path: Path) -> Tiny:
    """A base and a delta of one row: under 8 KB of files."""
    job = Tiny(path)
    with job.writer() as writer:
        job.save(writer, "base", 1)
        job.save(writer, "delta", 2, [1])
    return job


def larger_directory(path: Path) -> Tiny:
    """A base, two deltas and a priority commit of three shards."""
    job = Tiny(path, rows=3000, dim=8, shards=3)
    with job.writer() as writer:
        job.save(writer, "base", 1)
        job.save(writer, "delta", 2, range(0, 3000, 3))
        job.save(writer, "priority", 3, range(0, 3000, 7))
        job.save(writer, "delta", 4, range(1, 3000, 2))
    return job


@dataclass
class Sink:
    """Rows that were never written are NaN; `calls` counts what was applied."""

    job: Tiny
    calls: int = 0
    weight: NDArray[np.float32] = field(init=False)
    state: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self.weight = np.full((self.job.rows, self.job.dim), np.nan, np.float32)
        self.state = np.full(self.job.rows, np.nan, np.float32)

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        self.calls += 1
        for each in stored:
            found = each.read()
            self.weight[found.rows] = found.weight
            self.state[found.rows] = found.state


@dataclass(frozen=True)
class Restored:
    """What a restore of the newest exact point gave (`state` None: it was refused), and what it said."""

    state: bytes | None
    said: str
    applied: int


def restore(job: Tiny) -> Restored:
    """Restores the newest intact point: rows, optimizer state, dense state."""
    sink = Sink(job)
    try:
        point = CheckpointStore(job.path).latest()
        point.plan().apply(sink)
        dense = np.asarray(point.dense()["dense"])
    except CprError as error:
        return Restored(None, str(error), sink.calls)
    state = sink.weight.tobytes() + sink.state.tobytes() + dense.tobytes()
    return Restored(state, "\n".join(point.skipped), sink.calls)


def files_of(path: Path) -> list[Path]:
    """The files of a directory that say anything: all but the locks."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "LOCK")
