"""`Shard`: the rows that fail as one, as global row ranges over a native collection with their own chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import CheckpointStore, CollectionSchema, Placement

if TYPE_CHECKING:
    from cpr_native.store import RestorePlan

DirtyRule = Literal["clear", "keep", "priority"]


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
    damaged base or delta was left out, so the next save must be a base.
    """

    rows: dict[str, int]
    reset: dict[str, int]
    skipped: tuple[str, ...]
    broken: bool


class _Loader:
    """Takes the rows of a restore plan into the engine; counts each row once."""

    def __init__(self, engine: Collection, ranges: Sequence[RowRange], dirty: DirtyRule) -> None:
        self._engine = engine
        self._dirty = dirty
        tables = engine.tables
        self._tables = {table.name: index for index, table in enumerate(tables)}
        self._offsets = [table.row_offset for table in tables]
        held = {row_range.table for row_range in ranges}
        self._seen = {table: np.zeros(tables[table].num_embeddings, np.bool_) for table in held}
        self._before = {table: engine.dirty(table) for table in held} if dirty == "keep" else {}

    def load_rows(
        self,
        table: str,
        rows: NDArray[np.int64],
        weight: NDArray[np.float32],
        state: NDArray[np.float32] | None,
        priority: bool,
    ) -> None:
        """Write `rows` of `table`; which of them end up dirty is the rule's choice."""
        index = self._tables[table]
        local = rows - self._offsets[index]
        self._seen[index][local] = True
        if self._dirty != "keep":
            self._write(index, rows, weight, state, dirty=priority and self._dirty == "priority")
            return
        kept = self._before[index][local]
        for flag in (False, True):
            chosen = kept == flag
            some = None if state is None else state[chosen]
            self._write(index, rows[chosen], weight[chosen], some, dirty=flag)

    def _write(
        self,
        table: int,
        rows: NDArray[np.int64],
        weight: NDArray[np.float32],
        state: NDArray[np.float32] | None,
        *,
        dirty: bool,
    ) -> None:
        rows, weight = np.ascontiguousarray(rows), np.ascontiguousarray(weight)
        state = None if state is None else np.ascontiguousarray(state)
        reference = None if state is None else describe(state)
        if len(rows):
            self._engine.load_rows(table, describe(rows), describe(weight), reference, dirty=dirty)

    def loaded(self, row_range: RowRange) -> int:
        """Return how many distinct rows of `row_range` were written."""
        offset = self._offsets[row_range.table]
        return int(self._seen[row_range.table][row_range.begin - offset : row_range.end - offset].sum())


def restore_rows(
    engine: Collection, ranges: Sequence[RowRange], plan: RestorePlan, *, dirty: DirtyRule
) -> Restored:
    """Put the rows of `ranges` back to what `plan` holds, in place; others to their initial weight and state.

    Trackers of all these rows are cleared. Dirty bits: "clear" clears them (the plan is an exact point),
    "keep" leaves them as they are, "priority" sets those of rows that come from a priority commit and
    clears the others (the bits died with the process). Every byte is verified before the first write;
    raises CorruptionError or OSError with nothing changed. All is read a second time to be written: a file
    that was damaged in between raises them too, and the rows are then half restored until a restore of the
    same ranges succeeds (it may, from older commits).
    """
    plan.verify()
    loader = _Loader(engine, ranges, dirty)
    for row_range in ranges:
        engine.reset_rows(row_range.table, row_range.begin, row_range.end)
        if dirty != "keep":
            engine.clear_trackers(row_range.table, row_range.begin, row_range.end, dirty=True)
    try:
        plan.apply(loader)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; it was damaged while it was restored: these rows are half restored and must be "
            "restored again"
        ) from error
    rows: dict[str, int] = {}
    reset: dict[str, int] = {}
    for row_range in ranges:
        loaded = loader.loaded(row_range)
        rows[row_range.name] = rows.get(row_range.name, 0) + loaded
        reset[row_range.name] = reset.get(row_range.name, 0) + len(row_range) - loaded
    return Restored(rows=rows, reset=reset, skipped=tuple(plan.skipped), broken=plan.broken)


class Shard:
    """The rows that fail as one.

    `number`: of the shard; `engine`: the collection its rows live in; `ranges`: its rows, one range per
    table at most; `store`: the checkpoint directory with its chain. Several shards may live over one
    engine.
    """

    def __init__(
        self, number: int, engine: Collection, ranges: Sequence[RowRange], store: CheckpointStore
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
            self._engine.discard_rows(row_range.table, row_range.begin, row_range.end)

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
    engine: Collection, store: CheckpointStore, schema: CollectionSchema, placement: Placement
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
