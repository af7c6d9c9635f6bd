"""Becoming the writer of a store: alone, or of one shard with the other processes of a gang."""

from __future__ import annotations

from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.gang import Gang
from cpr_native.store import CheckpointStore, Placement, StoreWriter
from cpr_native.store.part_writer import PartWriter


def open_writer(
    store: CheckpointStore,
    tables: TrainedCollection,
    placement: Placement,
    gang: Gang | None,
    *,
    keep: int | None,
    compact: int | None,
    quantise: int | None,
) -> StoreWriter | PartWriter:
    """Return the open writer; raises what `CheckpointStore.writer` does, in every process of a gang."""
    if gang is None:
        return store.writer(tables.schema, placement, keep=keep, compact=compact, quantise=quantise)
    if store.url is not None or quantise is not None:
        raise ValueError("shard, shards: expected a folder that all processes see, and quantise=None")
    writer = _opened(store, tables, placement, gang, None, keep, compact) if gang.shard == 0 else None
    first = gang.from_one(None if writer is None else (writer.run_id, writer.incarnation), 0)
    if writer is None:
        writer = _opened(store, tables, placement, gang, first, keep, compact)
    return writer


def _opened(
    store: CheckpointStore,
    tables: TrainedCollection,
    placement: Placement,
    gang: Gang,
    first: tuple[str, int] | None,
    keep: int | None,
    compact: int | None,
) -> PartWriter:
    run_id, incarnation = first or (None, None)
    return PartWriter(
        store.path,
        tables.schema,
        placement,
        shard=gang.shard,
        tables=[table.name for table in tables.own.tables],
        run_id=run_id,
        incarnation=incarnation,
        limit=gang.limit,
        keep=keep,
        compact=compact,
    )
