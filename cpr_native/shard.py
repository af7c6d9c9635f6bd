"""`Shard`: the rows that fail as one, as global row ranges over a native collection with their own chain."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import mark_rows
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import CheckpointStore, CollectionSchema, NativeTables, Placement, load_stored

if TYPE_CHECKING:
    from cpr_native.store import RestorePlan, StoredRows

DirtyRule = Literal["clear", "keep", "priority"]


class Table(Protocol):
    """What a restore reads of a table."""

    @property
    def name(self) -> str:
        """The name in checkpoints."""
        ...

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        ...

    @property
    def row_offset(self) -> int:
        """Global id of its first row."""
        ...


@runtime_checkable
class Engines(Protocol):
    """Several collections with their tables numbered through."""

    @property
    def tables(self) -> Sequence[Table]:
        """The tables of all."""
        ...

    def home(self, table: int) -> tuple[NativeTables, int]:
        """Return the collection of a table and its number there."""
        ...


Engine = NativeTables | Engines


def _home(engine: Engine, table: int) -> tuple[NativeTables, int]:
    return engine.home(table) if isinstance(engine, Engines) else (engine, table)


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Global rows [begin, end) of one table; `table` is its index in the collection."""

    name: str
    table: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a restore did.

    `rows`: distinct rows read from commits, by table name; `reset`: rows that no commit has, back at their
    initial weight and state, by table name; `skipped`: what damaged files were passed over; `broken`: a
    damaged base or delta was left out, so the next save must be a base; `quantised`: rows read from commits
    that have them within a bound only.
    """

    rows: dict[str, int]
    reset: dict[str, int]
    skipped: tuple[str, ...]
    broken: bool
    quantised: int = 0


class _Loader:
    """Takes the rows of a restore plan into the engine; `quantised` counts those that are not to the bit.

    `dirty`: whether rows of priority commits end up dirty, all others do not. Of tables in `counted` it
    counts the distinct rows.
    """

    def __init__(self, engine: Engine, counted: set[int], *, dirty: bool) -> None:
        self._engine = engine
        self._dirty = dirty
        self.quantised = 0
        self._threads = len(os.sched_getaffinity(0))
        self._tables = {table.name: index for index, table in enumerate(engine.tables)}
        self._ranges = {
            index: (table.row_offset, table.row_offset + table.num_embeddings)
            for index, table in enumerate(engine.tables)
            if index in counted
        }
        self._seen = {
            index: np.zeros((end - begin + 7) // 8, np.uint8) for index, (begin, end) in self._ranges.items()
        }

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        """Write rows straight from their files."""
        wanted = []
        for each in stored:
            index = self._tables[each.table]
            if index in self._seen:
                mark_rows(describe(each.ids()), *self._ranges[index], describe(self._seen[index]))
            wanted.append((each, *_home(self._engine, index), each.priority and self._dirty))
            self.quantised += each.count * each.quantised
        load_stored(wanted, self._threads)

    def loaded(self, row_range: RowRange) -> int:
        """Return how many distinct rows of `row_range` were written; its table is counted."""
        begin, end = self._ranges[row_range.table]
        seen = np.unpackbits(self._seen[row_range.table], count=end - begin, bitorder="little")
        return int(seen[row_range.begin - begin : row_range.end - begin].sum(dtype=np.int64))


def restore_rows(
    engine: Engine, ranges: Sequence[RowRange], plan: RestorePlan, *, dirty: DirtyRule
) -> Restored:
    """Put the rows of `ranges` back to what `plan` holds, in place; others to their initial weight and state.

    Trackers of all these rows are cleared. Dirty bits: "clear" clears them (the plan is an exact point),
    "keep" leaves them as they are, "priority" sets those of rows that come from a priority commit and
    clears the others (the bits died with the process). Every byte is verified before the first write;
    raises CorruptionError or OSError with nothing changed. All is read a second time to be written, through
    a few MB of memory: a file that was damaged in between raises them too, and the rows are then half
    restored until a restore of the same ranges succeeds (it may, from older commits).
    """
    plan.verify()
    # Rows of which the plan has every one are written and need no other treatment first.
    partial = [r for r in ranges if not plan.holds(r.name, r.begin, r.end)]
    loader = _Loader(engine, {row_range.table for row_range in partial}, dirty=dirty == "priority")
    kept = _dirty_rows(engine, ranges) if dirty == "keep" else {}
    for row_range in ranges if kept else ():
        home, table = _home(engine, row_range.table)
        home.clear_trackers(table, row_range.begin, row_range.end, dirty=False)
    for row_range in partial:
        home, table = _home(engine, row_range.table)
        home.reset_rows(table, row_range.begin, row_range.end)
        if dirty != "keep":
            home.clear_trackers(table, row_range.begin, row_range.end, dirty=True)
    try:
        plan.apply(loader)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; it was damaged while it was restored: these rows are half restored and must be "
            "restored again"
        ) from error
    finally:
        for number, rows in kept.items():
            home, table = _home(engine, number)
            home.mark_dirty(table, describe(rows))
    loaded: dict[str, int] = {}
    reset: dict[str, int] = {}
    for row_range in ranges:
        found = loader.loaded(row_range) if row_range in partial else len(row_range)
        loaded[row_range.name] = loaded.get(row_range.name, 0) + found
        reset[row_range.name] = reset.get(row_range.name, 0) + len(row_range) - found
    return Restored(
        rows=loaded,
        reset=reset,
        skipped=tuple(plan.skipped),
        broken=plan.broken,
        quantised=loader.quantised,
    )


def _dirty_rows(engine: Engine, ranges: Sequence[RowRange]) -> dict[int, NDArray[np.int64]]:
    """Return the global ids of the rows of `ranges` that are dirty now, by table."""
    found: dict[int, list[NDArray[np.int64]]] = {}
    for row_range in ranges:
        offset = engine.tables[row_range.table].row_offset
        home, table = _home(engine, row_range.table)
        bits = home.dirty(table)[row_range.begin - offset : row_range.end - offset]
        found.setdefault(row_range.table, []).append(np.flatnonzero(bits) + row_range.begin)
    return {table: np.concatenate(rows) for table, rows in found.items()}


class Shard:
    """The rows that fail as one.

    `number`: of the shard; `engine`: the collection its rows live in, or several; `ranges`: its rows, one
    range per table at most; `store`: the checkpoint directory with its chain. Several shards may live over
    one engine.
    """

    def __init__(
        self, number: int, engine: Engine, ranges: Sequence[RowRange], store: CheckpointStore
    ) -> None:
        self.number = number
        self.ranges = tuple(ranges)
        self._engine = engine
        self._store = store

    def __len__(self) -> int:
        return sum(len(row_range) for row_range in self.ranges)

    def discard(self) -> None:
        """Destroy the rows in memory, as the loss of their process would: weight and state become NaN."""
        for row_range in self.ranges:
            home, table = _home(self._engine, row_range.table)
            home.discard_rows(table, row_range.begin, row_range.end)

    def plan(self) -> RestorePlan:
        """Return the plan of the newest intact state of the shard's chain; reads manifests only."""
        return self._store.shard_plan(self.number)

    def restore(self, plan: RestorePlan | None = None, *, restart: bool = False) -> Restored:
        """Put the rows back to the newest committed ones, priority commits too; see `restore_rows`.

        `plan`: one of `plan()`, None to make it; `restart`: the dirty bits died with the process
        ("priority") instead of staying ("keep"). No other row is read or written.
        """
        rule: DirtyRule = "priority" if restart else "keep"
        return restore_rows(self._engine, self.ranges, self.plan() if plan is None else plan, dirty=rule)


def make_shards(
    engine: Engine, store: CheckpointStore, schema: CollectionSchema, placement: Placement
) -> tuple[Shard, ...]:
    """Return the shards of `placement` over `engine`, in order; empty ranges are left out."""
    shards = []
    for number in range(placement.shards):
        ranges = []
        for index, table in enumerate(schema.tables):
            begin, end = placement.row_range(schema, table.name, number)
            if begin < end:
                ranges.append(RowRange(name=table.name, table=index, begin=begin, end=end))
        shards.append(Shard(number, engine, ranges, store))
    return tuple(shards)
