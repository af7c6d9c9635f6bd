"""Two small tables in three shards, with an engine, a store and its writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, Selection, TableSpec
from cpr_native._tensor import describe
from cpr_native.shard import make_shards
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    StoreWriter,
    TableSchema,
)

ROWS, DIMS = (10, 7), (4, 3)
NAMES = ("a", "b")
SHARDS = 3
SCHEMA = CollectionSchema(
    tables=tuple(
        TableSchema(name=name, rows=rows, dim=dim, init_min=-1.0, init_max=1.0)
        for name, rows, dim in zip(NAMES, ROWS, DIMS, strict=True)
    ),
    optimizer="row_wise_adagrad",
    seed=5,
)
PLACEMENT = Placement.contiguous(SCHEMA, SHARDS)


def make_engine() -> Collection:
    tables = [
        TableSpec(name=name, num_embeddings=rows, embedding_dim=dim, init_min=-1.0, init_max=1.0)
        for name, rows, dim in zip(NAMES, ROWS, DIMS, strict=True)
    ]
    return Collection(tables, [0, 1], optimizer="row_wise_adagrad", learning_rate=0.1, seed=5)


def step(engine: Collection, ids: list[list[int]]) -> None:
    """One bag per table with the given ids; the gradient is all ones."""
    flat = np.array(ids[0] + ids[1], np.int64)
    offsets = np.array([0, len(ids[0]), len(flat)], np.int64)
    out = np.empty((1, sum(DIMS)), np.float32)
    batch = engine.lookup(describe(flat), describe(offsets), None, describe(out), threads=1, keep=True)
    assert batch is not None
    assert engine.update(batch, describe(np.ones_like(out)), threads=1)


def save(engine: Collection, writer: StoreWriter, kind: str) -> None:
    rule = {"base": Selection.all(), "delta": Selection.dirty(), "priority": Selection.most_used(2)}[kind]
    blocks = [PLACEMENT.blocks[name] for name in NAMES]
    snapshot = engine.begin([rule, rule], clears_dirty=kind != "priority", shard_rows=blocks)
    pending = writer.begin(kind, step=engine.step, samples=engine.step)
    for chunk in snapshot:
        pending.add(
            SegmentPart(
                shard=chunk.shard,
                table=NAMES[chunk.table],
                rows=chunk.rows,
                weight=chunk.weight,
                state=chunk.state,
                count=chunk.count,
                close=chunk.close,
            )
        )
    pending.commit({})
    snapshot.commit()


def rows(engine: Collection) -> list[NDArray[np.float32]]:
    arrays = []
    for table in range(2):
        state = engine.state(table)
        assert state is not None
        arrays.append(np.column_stack([engine.weight(table), state]))
    return arrays


def lost(table: int, shard: int) -> NDArray[np.bool_]:
    mask = np.zeros(ROWS[table], np.bool_)
    begin, end = PLACEMENT.row_range(SCHEMA, NAMES[table], shard)
    mask[begin:end] = True
    return mask


class Setup:
    def __init__(self, path: Path) -> None:
        self.engine = make_engine()
        self.store = CheckpointStore(path)
        self.writer = self.store.writer(SCHEMA, PLACEMENT)
        self.shards = make_shards(self.engine, self.store, SCHEMA, PLACEMENT)
        step(self.engine, [[0, 1, 5], [2, 6]])
        save(self.engine, self.writer, "base")
        self.base = rows(self.engine)
