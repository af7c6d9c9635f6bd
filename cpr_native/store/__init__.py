"""The checkpoint directory: chains of commits, one per shard and a global one.

`docs/format.md` has the bytes.

Writing (one writer at a time; it holds the directory's lock)::

    store = CheckpointStore(path)
    with store.writer(schema, placement) as writer:
        save = writer.begin("base", step=100, samples=51200, engine={"learning_rate": 0.01})
        for chunk in snapshot:
            save.add(SegmentPart(shard=chunk.shard, table=name, rows=chunk.rows, weight=chunk.weight,
                                 state=chunk.state, count=chunk.count, close=chunk.close))
        info = save.commit(dense={"rng": b"...", "top.0.weight": array}, info={"position": 7})

`save.flush()` writes and closes all gathered parts (call it when `next_chunk(timeout)` gives none);
`save.abort()` drops the save. `writer.permits(kind)` says whether a save of that kind may be committed now:
a delta needs a base; over an existing history, only a base until `writer.rollback(point)` has attached to it.

Reading (no lock, never writes)::

    point = store.latest("exact")       # or "running"; raises NoCheckpointError
    point.step, point.samples, point.kind, point.info, point.engine, point.dense(), point.skipped
    plan = point.plan()                 # or plan(shards=[3])
    plan.verify()                       # every byte, before anything is applied
    plan.apply(sink)                    # sink.load_rows([stored, ...]), see `StoredRows`
    store.shard_plan(3).apply(sink)     # newest intact state of one shard's chain

`plan.complete` is False when a chain has no base: the caller resets the rows to their initial values
after `verify` and before `apply`. `plan.broken` is True when a damaged base or delta was left out: the
next save must be a base.
"""

from cpr_native.store.chain_writer import ChainWriter
from cpr_native.store.commit_info import CommitInfo
from cpr_native.store.directory import RestorePoint
from cpr_native.store.inspect import inspect, verify
from cpr_native.store.native_tables import NativeTables
from cpr_native.store.placement import Placement, ShardRows
from cpr_native.store.placing import Loads, loads, rows_staggered, whole_tables
from cpr_native.store.points import CheckpointStore
from cpr_native.store.restore import RestorePlan, RowSink
from cpr_native.store.schema import CollectionSchema, TableSchema
from cpr_native.store.segment import SegmentPart
from cpr_native.store.stored import StoredRows, TableRows, load_stored
from cpr_native.store.writer import Save, StoreWriter

__all__ = [
    "ChainWriter",
    "CheckpointStore",
    "CollectionSchema",
    "CommitInfo",
    "Loads",
    "NativeTables",
    "Placement",
    "RestorePlan",
    "RestorePoint",
    "RowSink",
    "Save",
    "SegmentPart",
    "ShardRows",
    "StoreWriter",
    "StoredRows",
    "TableRows",
    "TableSchema",
    "inspect",
    "load_stored",
    "loads",
    "rows_staggered",
    "verify",
    "whole_tables",
]
