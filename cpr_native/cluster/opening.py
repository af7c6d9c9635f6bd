"""How the process of a shard begins: it fences its predecessors, then has the newest rows that are left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from cpr_native.cluster.messages import ShardRecovery
from cpr_native.cluster.shared_books import SharedBooks, attach_memory
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.cluster.tables import ShardTables
from cpr_native.shard import restore_rows
from cpr_native.store import ChainWriter
from cpr_native.store.chain import ChainReader
from cpr_native.store.manifest import DATA_KINDS, Manifest
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
class _Before:
    """What the chain says of the lives before: the newest save, and the newest generation of trainers."""

    save: Manifest | None
    generation: int
    watermarks: tuple[int, ...]
    damaged: tuple[str, ...]


def open_shard(spec: ClusterSpec, shard: int) -> Opened:
    """Take over the chain of `shard` and have its rows in memory.

    An epoch is committed first, so that no older life of the shard can commit again, whether it still runs or
    not. Rows come from shared memory if an earlier process of this node left them whole; else from the newest
    intact commits; else they are initial ones.

    Raises what `CheckpointStore.chain_writer` and `shard_plan` raise, OSError without memory.
    """
    started = monotonic()
    store = spec.open_store()
    writer = store.chain_writer(shard, spec.schema, spec.placement, run_id=spec.run_id, takes_over=True)
    try:
        memory, refused = attach_memory(spec, shard)
        if memory is not None:
            tables = ShardTables(spec, shard, memory.claim(spec.layout(shard)))
        else:
            tables = ShardTables(spec, shard)
        past = _past(writer.reader(), spec.ranks)
        books = None if memory is None else SharedBooks(memory, tables, writer.identity.run_id)
        left: Mapping[str, Any] | None = None
        if books is not None:
            left, refused = books.find(writer.reader())
        if books is not None and left is not None:
            books.attach(left)
            writer.go_on()
            if past.damaged:
                writer.require_base()
            source, rows, reset, skipped = "memory", dict[str, int](), dict[str, int](), past.damaged
            watermarks = tuple(left["watermarks"])
        else:
            if books is not None:
                books.begin_anew()
            plan = store.shard_plan(shard)
            done = restore_rows(tables.engine, tables.ranges, plan, dirty="priority")
            writer.go_on()
            if done.broken:
                writer.require_base()
            if past.save is not None:
                tables.set_scalars(past.save.engine)
            source = "initial" if past.save is None else "checkpoint"
            rows, reset, skipped = done.rows, done.reset, done.skipped
            watermarks = past.watermarks
    except BaseException:
        writer.close()
        raise
    recovery = ShardRecovery(
        shard=shard,
        incarnation=writer.incarnation,
        source=source,
        watermarks=watermarks,
        rows=rows,
        reset=reset,
        seconds=monotonic() - started,
        skipped=skipped,
        refused=refused,
    )
    return Opened(
        writer=writer,
        tables=tables,
        books=books,
        generation=max(past.generation, 1 if left is None else left["generation"]),
        commit=past.save,
        recovery=recovery,
    )


def _past(reader: ChainReader, ranks: int) -> _Before:
    """Return what the history says, from its newest commit back to the newest save."""
    damaged: list[str] = []
    generation, at = 0, reader.newest(damaged)
    while at is not None:
        manifest = at[0]
        generation = max(generation, int(manifest.info.get("generation", 0)))
        if manifest.kind in DATA_KINDS:
            watermarks = tuple(manifest.info.get("watermarks", [manifest.step] * ranks))
            return _Before(
                save=manifest,
                generation=max(generation, 1),
                watermarks=watermarks,
                damaged=tuple(damaged),
            )
        at, _ = before(reader, manifest, damaged)
    return _Before(save=None, generation=max(generation, 1), watermarks=(0,) * ranks, damaged=tuple(damaged))
