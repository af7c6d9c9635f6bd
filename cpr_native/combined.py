"""Several engines with their tables numbered through, and one snapshot of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cpr_native._native import Chunk, Selection, Snapshot
from cpr_native.store import NativeTables, SegmentPart, ShardRows

# Seconds to wait for a chunk before the parts gathered are written, which returns their staging memory.
_CHUNK_TIMEOUT = 0.1


class PartSink(Protocol):
    """A save that takes rows, of all shards or of one."""

    @property
    def shards(self) -> int:
        """How many shards the rows are of."""
        ...

    def add(self, part: SegmentPart) -> None:
        """Take a part over; as `Save.add`."""
        ...

    def flush(self) -> None:
        """Make all parts held durable and close them; as `Save.flush`."""
        ...


@dataclass(frozen=True)
class CombinedTable:
    """A table of one of the engines, under its name in the model."""

    name: str
    num_embeddings: int
    embedding_dim: int
    row_offset: int


class CombinedSnapshot:
    """A snapshot of each engine, all of one step boundary, committed or aborted together.

    `snapshots`: in the engines' order; `names`: of the tables of each; `blocking`: they were copied at once.
    Otherwise one is copied after the other, by one thread, as it is read.
    """

    def __init__(
        self, snapshots: Sequence[Snapshot], names: Sequence[Sequence[str]], *, blocking: bool
    ) -> None:
        self._snapshots = list(snapshots)
        self._names = list(names)
        self._blocking = blocking
        self._reading = 0

    @property
    def status(self) -> str:
        """`complete`, or the first other status of one of them."""
        return next((s.status for s in self._snapshots if s.status != "complete"), "complete")

    @property
    def stall_seconds(self) -> float:
        """Seconds that updates waited for staging memory."""
        return sum(snapshot.stall_seconds for snapshot in self._snapshots)

    def add_to(self, save: PartSink) -> tuple[int, list[list[int]]]:
        """Add all rows to `save`; return their number, and lookups per engine and shard.

        Raises what `Snapshot.next_chunk` and `Save.add` raise.
        """
        rows, lookups = 0, [[0] * save.shards for _ in self._snapshots]
        while self._reading < len(self._snapshots):
            try:
                found = self._next_chunk()
            except TimeoutError:
                save.flush()
                continue
            if found is None:
                self._reading += 1
                continue
            number, chunk = found
            rows += len(chunk.rows)
            lookups[number][chunk.shard] += int(chunk.count.sum(dtype=np.int64))
            save.add(
                SegmentPart(
                    shard=chunk.shard,
                    table=self._names[number][chunk.table],
                    rows=chunk.rows,
                    weight=chunk.weight,
                    state=chunk.state,
                    count=chunk.count,
                    close=chunk.close,
                )
            )
            del found, chunk  # its memory is wanted for the next
        return rows, lookups

    def _next_chunk(self) -> tuple[int, Chunk] | None:
        """Return a chunk and the number of its snapshot; None after the last of that whose turn it is.

        What updates have copied of those whose turn has not come goes first: training waits when there is
        too much of it.
        """
        for number in () if self._blocking else range(self._reading + 1, len(self._snapshots)):
            try:
                chunk = self._snapshots[number].next_chunk(0.0)
            except TimeoutError:
                continue
            if chunk is not None:
                return number, chunk
        self._snapshots[self._reading].walk()
        chunk = self._snapshots[self._reading].next_chunk(_CHUNK_TIMEOUT)
        return None if chunk is None else (self._reading, chunk)

    def commit(self) -> None:
        """Drop what all of them took, once it is durable; raises as `Snapshot.commit`."""
        for snapshot in self._snapshots:
            snapshot.commit()

    def abort(self) -> None:
        """Give back what all of them took; one that raises does not keep the others from it."""
        with ExitStack() as stack:
            for snapshot in self._snapshots:
                stack.callback(snapshot.abort)


class CombinedEngine:
    """Several native collections with their tables numbered through, called `names` in that order."""

    def __init__(self, engines: Sequence[NativeTables], names: Sequence[str]) -> None:
        self._engines = list(engines)
        self._homes = [(engine, table) for engine in engines for table in range(len(engine.tables))]
        specs = [spec for engine in engines for spec in engine.tables]
        self._tables = [
            CombinedTable(name, spec.num_embeddings, spec.embedding_dim, spec.row_offset)
            for name, spec in zip(names, specs, strict=True)
        ]

    @property
    def tables(self) -> list[CombinedTable]:
        """The tables of all engines."""
        return self._tables

    def home(self, table: int) -> tuple[NativeTables, int]:
        """Return the engine of a table and its number there."""
        return self._homes[table]

    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[ShardRows],
        blocking: bool,
    ) -> CombinedSnapshot:
        """Begin a snapshot of every engine, as `Collection.begin`; of all or, when that raises, of none."""
        snapshots: list[Snapshot] = []
        names: list[list[str]] = []
        with ExitStack() as undo:
            for engine in self._engines:
                at = sum(len(of) for of in names)
                end = at + len(engine.tables)
                snapshot = engine.begin(
                    selections[at:end],
                    clears_dirty=clears_dirty,
                    shard_rows=shard_rows[at:end],
                    blocking=blocking,
                    walk=blocking,
                )
                undo.callback(snapshot.abort)
                snapshots.append(snapshot)
                names.append([table.name for table in self._tables[at:end]])
            undo.pop_all()
        return CombinedSnapshot(snapshots, names, blocking=blocking)
