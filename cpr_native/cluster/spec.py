"""What a run's shards are made of, in a form that goes to any process by pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.config import BaseEmbeddingConfig, DataType, Trackers
from cpr_native.errors import NoCheckpointError
from cpr_native.optim import Adagrad, FusedOptimizer, RowWiseAdagrad
from cpr_native.store import CheckpointStore, CollectionSchema, Placement, RestorePoint, TableSchema
from cpr_native.store.checks import check_count

DEFAULT_STAGING_BYTES = 256 * 2**20


def schema_of(
    tables: Sequence[BaseEmbeddingConfig], optimizer: FusedOptimizer, *, seed: int = 0
) -> CollectionSchema:
    """Return what checkpoints say of `tables` under `optimizer`: what a placement is made from."""
    initial = optimizer.initial_accumulator if isinstance(optimizer, RowWiseAdagrad | Adagrad) else 0.0
    return CollectionSchema(
        tables=tuple(
            TableSchema(
                name=table.name,
                rows=table.num_embeddings,
                dim=table.embedding_dim,
                init_min=table.init_range[0],
                init_max=table.init_range[1],
                dtype=table.data_type.dtype,
            )
            for table in tables
        ),
        optimizer=optimizer.name,
        seed=seed,
        initial_state=initial,
    )


@dataclass(frozen=True, kw_only=True)
class Source:
    """A point of another run's checkpoint, perhaps of other shards, that a new run begins with.

    `store`, `cache`, `storage_options`: as of `ClusterSpec`; `sequence`, `crc`: of the global commit.
    """

    store: str
    sequence: int
    crc: int
    cache: str | None = None
    storage_options: Mapping[str, Any] | None = None

    @classmethod
    def newest(
        cls,
        store: str,
        *,
        cache: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Source:
        """Return the newest exact point whose manifests are whole; raises NoCheckpointError, OSError."""
        points = CheckpointStore(store, cache=cache, storage_options=storage_options).points()
        if not points:
            raise NoCheckpointError(f"{store}: no exact point")
        ref = points[0].ref
        return cls(
            store=store, sequence=ref.sequence, crc=ref.crc, cache=cache, storage_options=storage_options
        )

    def point(self) -> RestorePoint:
        """Return the point, with dense state and info; raises NoCheckpointError if it is gone, OSError."""
        store = CheckpointStore(self.store, cache=self.cache, storage_options=self.storage_options)
        for point in store.points():
            if (point.ref.sequence, point.ref.crc) == (self.sequence, self.crc):
                return point
        raise NoCheckpointError(f"{self.store}: commit {self.sequence} is not an exact point any more")


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Tables, optimizer, placement, store and limits of one run; the same for every shard and trainer.

    `tables`: in the order of messages; `trackers`: one each; `placement`: rows to shards; `seed`: of initial
    rows, as of a local collection. `store`: folder or URL of the checkpoint directory, with `cache` and
    `storage_options` as `CheckpointStore` takes them; every shard and the trainer of rank 0 must reach it.
    `run_id`: of the directory, which the trainer's side chooses.

    `ranks`: trainers at the start. `staleness`: a lookup of step t waits until step t - 1 - staleness is
    applied. `shared`: folder (on tmpfs) in which each shard keeps its tables so that the next process on the
    same node re-attaches to them, or "keeper" for memory of a small process each, which no file system bounds
    (`free_memory` frees either); None: process memory.
    `source`: what a shard without a save of its own begins with, instead of initial rows: tables of the same
    name have its rows, and steps go on from its step.
    `max_queued`: updates of one rank that wait for other ranks or for a cut. `lookup_seconds`: that a lookup
    waits at most. `threads`: of the engine of a shard, None for as many as it may use.
    `compact`: a shard folds its chain when it has more increments (`CheckpointStore.writer`); None: never.

    Raises ValueError.
    """

    tables: tuple[BaseEmbeddingConfig, ...]
    trackers: tuple[Trackers, ...]
    optimizer: FusedOptimizer
    placement: Placement
    store: str
    run_id: str
    seed: int = 0
    cache: str | None = None
    storage_options: Mapping[str, Any] | None = None
    ranks: int = 1
    staleness: int = 0
    shared: str | None = None
    source: Source | None = None
    max_queued: int = 8
    lookup_seconds: float = 60.0
    threads: int | None = None
    max_staging_bytes: int = DEFAULT_STAGING_BYTES
    compact: int | None = None

    def __post_init__(self) -> None:
        if len(self.tables) != len(self.trackers):
            raise ValueError(f"trackers: expected {len(self.tables)}, one a table, got {len(self.trackers)}")
        for name, least in (("ranks", 1), ("staleness", 0), ("max_queued", 1)):
            check_count(name, getattr(self, name), least)
        if not self.lookup_seconds > 0:
            raise ValueError(f"lookup_seconds: expected more than 0, got {self.lookup_seconds}")
        if not isinstance(self.optimizer, FusedOptimizer):
            raise ValueError(f"optimizer: expected a fused one, got {self.optimizer!r}")
        for table, tracked in zip(self.tables, self.trackers, strict=True):
            if table.data_type is DataType.FP64:
                raise ValueError(f"table {table.name!r}: a fused optimizer has no FP64")
            if not tracked.dirty:
                raise ValueError(f"table {table.name!r}: saving needs the dirty tracker, it is off")
        self.placement.check_covers(self.schema)
        for shard in range(self.placement.shards):
            for table in self.tables:
                begin, end = self.row_range(table.name, shard)
                if end - begin >= 2**31:
                    raise ValueError(
                        f"table {table.name!r}: expected fewer than 2^31 rows a shard, got {end - begin}"
                    )

    @cached_property
    def schema(self) -> CollectionSchema:
        """Tables and optimizer as checkpoints have them: equal to those of the local collection."""
        return schema_of(self.tables, self.optimizer, seed=self.seed)

    @property
    def shards(self) -> int:
        """Their number."""
        return self.placement.shards

    @property
    def dims(self) -> NDArray[np.int64]:
        """Length of a row of each table, int64 [tables]."""
        return np.array([table.embedding_dim for table in self.tables], np.int64)

    def row_range(self, table: str, shard: int) -> tuple[int, int]:
        """Return the global rows [begin, end) of `table` that `shard` holds; may be empty."""
        return self.placement.row_range(self.schema, table, shard)

    def begins(self, shard: int) -> NDArray[np.int64]:
        """Return the global row that is local row 0 of `shard`, int64 [tables]."""
        return np.array([self.row_range(table.name, shard)[0] for table in self.tables], np.int64)

    def sizes(self, shard: int) -> NDArray[np.int64]:
        """Return how many rows of each table `shard` holds, int64 [tables]."""
        ranges = [self.row_range(table.name, shard) for table in self.tables]
        return np.array([end - begin for begin, end in ranges], np.int64)

    def open_store(self) -> CheckpointStore:
        """Return the checkpoint directory, without touching it."""
        return CheckpointStore(self.store, cache=self.cache, storage_options=self.storage_options)

    def layout(self, shard: int) -> list[dict[str, Any]]:
        """Return what the memory of `shard` looks like, table by table, as JSON values."""
        shared = {
            "optimizer": self.optimizer.name,
            "initial_state": self.schema.initial_state,
            "seed": self.seed,
        }
        return [
            {
                "name": table.name,
                "rows": list(self.row_range(table.name, shard)),
                "dim": table.embedding_dim,
                "dtype": table.data_type.dtype,
                "init_range": list(table.init_range),
                "trackers": asdict(tracked),
                **shared,
            }
            for table, tracked in zip(self.tables, self.trackers, strict=True)
        ]
