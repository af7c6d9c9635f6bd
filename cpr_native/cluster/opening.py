"""How the process of a shard begins: it fences its predecessors, then has the newest rows that are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from cpr_native._tensor import describe
from cpr_native.cluster.messages import ShardRecovery
from cpr_native.cluster.shared_books import SharedBooks, attach_memory
from cpr_native.cluster.spec import ClusterSpec, Source
from cpr_native.cluster.tables import ShardTables
from cpr_native.errors import CorruptionError
from cpr_native.shard import restore_rows
from cpr_native.store import ChainWriter, CheckpointStore, TableRows
from cpr_native.store.chain import ChainReader
from cpr_native.store.manifest import DATA_KINDS, Manifest
from cpr_native.store.reshard import read_point, table_changes
from cpr_native.store.restore import before


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A shard that is ready: `books` are those in shared memory, None without; `commit`: its newest save."""

    writer: ChainWriter
    tables: ShardTables
    books: SharedBooks | None
    generation: int
    commit: Manifest | None
    recovery: ShardRecovery


@dataclass(frozen=True, kw_only=True)
class _Filled:
    """Where rows came from; see `ShardRecovery`. `commit`: the newest save that they have."""

    source: str
    watermarks: tuple[int, ...]
    commit: Manifest | None = None
    rows: Mapping[str, int]
    reset: Mapping[str, int]
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    read_bytes: int = 0


def open_shard(spec: ClusterSpec, shard: int) -> Opened:
    """Take over the chain of `shard` and have its rows in memory.

    An epoch is committed first, so that no older life of the shard can commit again, whether it still runs or
    not. Rows come from shared memory if an earlier process of this node left them whole; else from the newest
    intact commits; without a save from `spec.source`; else they are initial ones.

    Raises what `CheckpointStore.chain_writer` and `shard_plan` raise, SchemaMismatchError and
    NoCheckpointError for a source that does not fit or is gone, OSError without memory.
    """
    started = monotonic()
    store = spec.open_store()
    writer = store.chain_writer(shard, spec.schema, spec.placement, run_id=spec.run_id, takes_over=True)
    try:
        memory, refused = attach_memory(spec, shard)
        region = None if memory is None else memory.claim(spec.layout(shard))
        tables = ShardTables(spec, shard, region)
        books = None if memory is None else SharedBooks(memory, tables, writer.identity.run_id)
        generation, left = _generation(writer.reader()), None
        if books is not None:
            left, refused = books.find(writer.reader())
        if books is not None and left is not None:
            filled = _reattached(books, left, writer)
            generation = max(generation, left["generation"])
        else:
            if books is not None:
                books.begin_anew()
            filled = _restored(store, tables, writer)
            if filled.commit is None and spec.source is not None:
                filled = _resharded(spec.source, tables)
    except BaseException:
        writer.close()
        raise
    recovery = ShardRecovery(
        shard=shard,
        incarnation=writer.incarnation,
        source=filled.source,
        watermarks=filled.watermarks,
        rows=filled.rows,
        reset=filled.reset,
        seconds=monotonic() - started,
        skipped=filled.skipped,
        notes=filled.notes,
        read_bytes=filled.read_bytes,
        refused=refused,
    )
    return Opened(
        writer=writer,
        tables=tables,
        books=books,
        generation=generation,
        commit=filled.commit,
        recovery=recovery,
    )


def _generation(reader: ChainReader) -> int:
    """Return the newest generation of trainers that the shard was told of, 1 if it was not."""
    at = reader.newest([])
    while at is not None:
        if "generation" in at[0].info:
            return int(at[0].info["generation"])
        at, _ = before(reader, at[0], [])
    return 1


def _newest_save(reader: ChainReader, damaged: list[str]) -> Manifest | None:
    at = reader.newest(damaged)
    while at is not None and at[0].kind not in DATA_KINDS:
        at, _ = before(reader, at[0], damaged)
    return None if at is None else at[0]


def _reattached(books: SharedBooks, left: Mapping[str, Any], writer: ChainWriter) -> _Filled:
    damaged: list[str] = []
    commit = _newest_save(writer.reader(), damaged)
    books.attach(left)
    writer.go_on()
    if damaged:
        writer.require_base()
    watermarks = tuple(left["watermarks"])
    return _Filled(
        source="memory", watermarks=watermarks, commit=commit, rows={}, reset={}, skipped=tuple(damaged)
    )


def _restored(store: CheckpointStore, tables: ShardTables, writer: ChainWriter) -> _Filled:
    plan = store.shard_plan(tables.shard)
    done = restore_rows(tables.engine, tables.ranges, plan, dirty="priority")
    writer.go_on()
    if done.broken:
        writer.require_base()
    commits, ranks = plan.chains[0].commits, tables.spec.ranks
    if not commits:
        return _Filled(
            source="initial", watermarks=(0,) * ranks, rows=done.rows, reset=done.reset, skipped=done.skipped
        )
    commit = commits[-1]
    if commit.replaces is not None:  # the notes are in what it stands for
        try:
            commit = plan.chains[0].reader.follow(commit.replaces)
        except CorruptionError:
            commit = commits[-1]
    tables.set_scalars(commit.engine or commits[-1].engine)
    return _Filled(
        source="checkpoint",
        watermarks=tuple(commit.info.get("watermarks", [commit.step] * ranks)),
        commit=commit,
        rows=done.rows,
        reset=done.reset,
        skipped=done.skipped,
    )


@dataclass(frozen=True)
class _Loading:
    """Writes rows of a checkpoint into the tables of a shard; they are clean."""

    tables: ShardTables

    def load(self, table: str, rows: TableRows) -> None:
        home = self.tables.home(table)
        assert home is not None
        state = None if rows.state is None else describe(rows.state)
        home[0].load_rows(home[1], describe(rows.rows), describe(rows.weight), state)


def _resharded(source: Source, tables: ShardTables) -> _Filled:
    point = source.point()
    changes = table_changes(tables.spec.schema, point.schema, source.store)
    ranges = {row_range.name: (row_range.begin, row_range.end) for row_range in tables.ranges}
    known = {name: of for name, of in ranges.items() if name in changes.kept}
    done = read_point(point, known, _Loading(tables))
    scalars, known_names = dict(done.engine), tables.scalars()
    if "betas" in scalars:  # of a job in one process
        scalars["beta1"], scalars["beta2"] = scalars["betas"]
    tables.set_scalars({name: value for name, value in scalars.items() if name in known_names})
    return _Filled(
        source="resharded",
        watermarks=(point.step,) * tables.spec.ranks,
        rows=done.rows,
        reset={name: end - begin for name, (begin, end) in ranges.items() if name in changes.added},
        notes=changes.notes,
        read_bytes=done.bytes,
    )
