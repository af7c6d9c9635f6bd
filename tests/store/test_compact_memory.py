"""Compaction of a chain that is larger than the memory it may take."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    TableSchema,
    inspect,
    verify,
)
from cpr_native.store.compact import BLOCK_BYTES
from cpr_native.store.segment_reader import read_tensors


def big(path: Path, rows: int, increments: int) -> tuple[CollectionSchema, int]:
    """A base and deltas of half of the rows each; returns the schema and the bytes of all segments."""
    schema = CollectionSchema(
        tables=(TableSchema(name="t", rows=rows, dim=16, init_min=0.0, init_max=1.0),), optimizer="sgd"
    )
    with CheckpointStore(path).writer(
        schema, Placement.contiguous(schema, 1), max_segment_bytes=2**20
    ) as writer:
        for number in range(increments + 1):
            ids = np.arange(rows)[number % 2 :: 2] if number else np.arange(rows)
            with writer.begin("delta" if number else "base", step=number, samples=0) as save:
                for some in np.array_split(np.ascontiguousarray(ids), 16):
                    weight = np.full((len(some), 16), number, np.float32)
                    save.add(
                        SegmentPart(
                            shard=0,
                            table="t",
                            rows=some,
                            weight=weight,
                            state=None,
                            count=np.zeros(len(some), np.uint32),
                        )
                    )
                save.commit({})
    return schema, sum(chain.bytes for chain in inspect(path).chains)


def test_memory_is_that_of_a_segment_whatever_the_chain(tmp_path: Path) -> None:
    schema, size = big(tmp_path, 200_000, 6)
    bound = 2**20 + 8 * BLOCK_BYTES + schema.tables[0].rows
    assert size > 4 * bound
    with CheckpointStore(tmp_path).writer(
        schema, Placement.contiguous(schema, 1), max_segment_bytes=2**20
    ) as writer:
        tracemalloc.start()
        try:
            (made,) = writer.housekeeping.fold(1)
            assert tracemalloc.get_traced_memory()[1] < bound
        finally:
            tracemalloc.stop()
    assert (made.commits, made.rows) == (7, 200_000)
    chain = CheckpointStore(tmp_path).latest().directory.shard(0)
    manifest = chain.load(made.sequence)[0]
    assert all(record.size <= 2**20 + 4096 for record in manifest.segments)
    seen = np.zeros(200_000)
    for record in manifest.segments:
        tensors = read_tensors(chain.segment_path(record.name), record)
        seen[tensors["t.rows"]] += 1
        assert ((tensors["t.weight"][:, 0] == 6) == (tensors["t.rows"] % 2 == 0)).all()
    assert (seen == 1).all()
    assert verify(tmp_path) == []
