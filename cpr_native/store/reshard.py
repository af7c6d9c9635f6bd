"""Reading a point of one placement for a shard of another: only the chains, tables and segments it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError, SchemaMismatchError
from cpr_native.store.chain import ChainReader
from cpr_native.store.directory import RestorePoint
from cpr_native.store.manifest import Manifest, SegmentRecord
from cpr_native.store.restore import exact_plan
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.stored import StoredRows, TableRows, stored_rows

Ranges = Mapping[str, tuple[int, int]]


class TableSink(Protocol):
    """What takes rows of a table."""

    def load(self, table: str, rows: TableRows) -> None:
        """Write rows in place; a later call has newer ones."""
        ...


@dataclass(frozen=True, kw_only=True)
class TableChanges:
    """What a schema makes of a checkpoint's: tables of both, new ones, and those of the checkpoint alone."""

    kept: tuple[str, ...]
    added: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each table that is not in both."""
        return (
            *(f"table {name!r} is not in the checkpoint: initial rows" for name in self.added),
            *(f"table {name!r} of the checkpoint is dropped" for name in self.dropped),
        )


def table_changes(schema: CollectionSchema, stored: CollectionSchema, where: str) -> TableChanges:
    """Compare the tables of `schema` by name with those `stored` in the checkpoint `where`.

    Raises SchemaMismatchError, naming table and field, for one of both that has other rows, or rows of
    another kind.
    """
    if schema.optimizer != stored.optimizer:
        raise SchemaMismatchError(f"{where}: optimizer: expected {schema.optimizer}, got {stored.optimizer}")
    theirs = {table.name: table for table in stored.tables}
    kept = [table for table in schema.tables if table.name in theirs]
    for table in kept:
        for name in ("rows", "dim", "dtype", "state_columns"):
            expected, got = getattr(table, name), getattr(theirs[table.name], name)
            if expected != got:
                raise SchemaMismatchError(
                    f"{where}: table {table.name!r}: {name}: expected {expected}, got {got}"
                )
    names = [table.name for table in schema.tables]
    return TableChanges(
        kept=tuple(table.name for table in kept),
        added=tuple(name for name in names if name not in theirs),
        dropped=tuple(name for name in theirs if name not in names),
    )


@dataclass
class _Progress:
    rows: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    shards: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Resharded:
    """What was read: rows by table, bytes of the tensors, and the shards of the checkpoint they lay in.

    `engine`: the optimizer scalars that the point has, as JSON values.
    """

    rows: Mapping[str, int]
    bytes: int
    shards: tuple[int, ...]
    engine: Mapping[str, Any]


def read_point(point: RestorePoint, ranges: Ranges, sink: TableSink) -> Resharded:
    """Write to `sink` what an exact restore of `point` has of the global rows `ranges`, by table.

    `ranges`: [begin, end), of tables of the point's schema. Every byte read is checked by its CRC, and that
    all rows are there. Raises CorruptionError, OSError with rows written already: begin anew then.
    """
    done = _Progress()
    seen = {name: np.zeros((end - begin + 7) // 8, np.uint8) for name, (begin, end) in ranges.items()}
    for shard in range(point.placement.shards):
        wanted: dict[str, tuple[int, int]] = {}
        for name, (begin, end) in ranges.items():
            first, last = point.placement.row_range(point.schema, name, shard)
            if max(begin, first) < min(end, last):
                wanted[name] = (max(begin, first), min(end, last))
        if wanted:
            done.shards.append(shard)
            _read_shard(point, shard, wanted, ranges, sink, seen, done)
    for name, (begin, end) in ranges.items():
        found = int(np.unpackbits(seen[name], count=end - begin, bitorder="little").sum(dtype=np.int64))
        if found != end - begin:
            raise CorruptionError(
                f"{point.directory.path}: table {name!r}: expected {end - begin} rows from {begin} on, got "
                f"{found}"
            )
        done.rows[name] = found
    return Resharded(rows=done.rows, bytes=done.bytes, shards=tuple(done.shards), engine=_engine_of(point))


def _engine_of(point: RestorePoint) -> Mapping[str, Any]:
    """Return the optimizer scalars of a point, which are those of each shard."""
    for shard, ref in point.manifest.commits.items():
        return point.directory.shard(shard).readings(ref)[-1].engine
    return point.engine


def _read_shard(
    point: RestorePoint,
    shard: int,
    wanted: Ranges,
    ranges: Ranges,
    sink: TableSink,
    seen: Mapping[str, NDArray[np.uint8]],
    done: _Progress,
) -> None:
    reader = point.directory.shard(shard)
    if shard not in point.manifest.commits:
        raise CorruptionError(f"{point.directory.path}: the point names no commit of shard {shard}")
    for commit in exact_plan(reader, shard, point.manifest.commits[shard]).commits:
        records = [record for record in commit.segments if wanted.keys() & record.rows.keys()]
        if records:
            reader.fetch([commit])
        for record in records:
            for name, rows in _rows_of(reader, commit, record, shard, wanted, done):
                begin, end = ranges[name]
                _native.mark_rows(describe(rows.rows), begin, end, describe(seen[name]))
                sink.load(name, rows)


def _rows_of(
    reader: ChainReader,
    commit: Manifest,
    record: SegmentRecord,
    shard: int,
    wanted: Ranges,
    done: _Progress,
) -> Sequence[tuple[str, TableRows]]:
    """Return the wanted rows of a segment, by table; of one without any only the row ids are read."""
    found = []
    path = reader.segment_path(record.name)
    with stored_rows(path, record, commit.schema, commit.placement, shard) as tables:
        for stored in tables:
            if stored.table not in wanted:
                continue
            begin, end = wanted[stored.table]
            ids = stored.ids()
            done.bytes += ids.nbytes
            mask = (ids >= begin) & (ids < end)
            if mask.any():
                found.append((stored.table, _chosen(stored, mask, done)))
    return found


def _chosen(stored: StoredRows, mask: NDArray[np.bool_], done: _Progress) -> TableRows:
    rows = stored.read()
    done.bytes += rows.weight.nbytes + (0 if rows.state is None else rows.state.nbytes)
    if mask.all():
        return rows
    return TableRows(
        rows=rows.rows[mask],
        weight=rows.weight[mask],
        state=None if rows.state is None else rows.state[mask],
    )
