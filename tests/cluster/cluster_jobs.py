"""A small run over shards: its spec, its batches, and the local collection to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, TableSpec
from cpr_native._tensor import describe
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.config import EmbeddingConfig, Trackers
from cpr_native.optim import Adagrad, Adam, FusedOptimizer, RowWiseAdagrad, native_scalars
from cpr_native.store import Placement

TIMEOUT = 30.0
# Two embedding dims, a table with fewer rows than shards, several features of one table are the client's.
TABLES = (("a", 61, 8), ("b", 3, 8), ("c", 40, 4))
WHOLE = (("a", 61, 8), ("b", 3, 8), ("d", 17, 8))

Batch = dict[str, NDArray[np.int64]]


def spec_of(
    path: Path,
    *,
    shards: int = 3,
    tables: Sequence[tuple[str, int, int]] = TABLES,
    optimizer: FusedOptimizer | None = None,
    **options: Any,
) -> ClusterSpec:
    """Return a spec over `path`; row-wise placement unless `placement` is given."""
    configs = tuple(
        EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[name])
        for name, rows, dim in tables
    )
    placement = options.pop("placement", None) or Placement(
        shards=shards, blocks={name: -(-rows // shards) for name, rows, _ in tables}
    )
    return ClusterSpec(
        tables=configs,
        trackers=options.pop("trackers", (Trackers(drift=True),) * len(configs)),
        optimizer=optimizer or RowWiseAdagrad(lr=0.1),
        placement=placement,
        store=str(path),
        run_id=options.pop("run_id", "run"),
        seed=3,
        threads=1,
        **options,
    )


def batch_of(spec: ClusterSpec, step: int, rank: int = 0) -> Batch:
    """Return the lookups of a rank's step: global ids with repeats, by table; some tables have none."""
    rng = np.random.default_rng((step, rank))
    found = {}
    for table in spec.tables:
        size = int(rng.integers(0, 12)) if table.num_embeddings < 10 else int(rng.integers(4, 24))
        found[table.name] = (table.num_embeddings * rng.random(size) ** 2).astype(np.int64)
    return found


def gradient_of(rows: NDArray[np.float32], step: int, rank: int) -> NDArray[np.float32]:
    """Return the gradient of looked-up rows: it depends on every number, so a stale row shows."""
    noise = np.random.default_rng((step, rank, 1)).standard_normal(rows.shape).astype(np.float32)
    return (rows * np.float32(0.25) + noise).astype(np.float32)


@dataclass
class Unique:
    """Unique rows of a batch, by table, and how often each is looked up."""

    rows: dict[str, NDArray[np.int64]]
    times: dict[str, NDArray[np.uint32]]

    @classmethod
    def of(cls, batch: Batch) -> Unique:
        """Return those of `batch`."""
        found = {name: np.unique(ids, return_counts=True) for name, ids in batch.items()}
        return cls(
            {name: rows for name, (rows, _) in found.items()},
            {name: times.astype(np.uint32) for name, (_, times) in found.items()},
        )


class LocalTables:
    """The same tables whole in this process, as a local collection has them."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        settings = native_scalars(spec.optimizer)
        if isinstance(spec.optimizer, RowWiseAdagrad | Adagrad):
            settings["initial_state"] = spec.optimizer.initial_accumulator
        self.engines = {
            table.name: Collection(
                [
                    TableSpec(
                        name=table.name,
                        num_embeddings=table.num_embeddings,
                        embedding_dim=table.embedding_dim,
                        pooling="none",
                        init_min=table.init_range[0],
                        init_max=table.init_range[1],
                        drift=trackers.drift,
                        dtype=table.data_type.dtype,
                    )
                ],
                [0],
                optimizer=spec.optimizer.name,
                **settings,
                seed=spec.seed,
            )
            for table, trackers in zip(spec.tables, spec.trackers, strict=True)
        }

    def lookup(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return rows of a table, [n, dim]."""
        return self._look_up(name, rows, keep=False)[0]

    def _look_up(self, name: str, rows: NDArray[np.int64], *, keep: bool) -> tuple[NDArray[np.float32], Any]:
        engine = self.engines[name]
        out = np.empty((len(rows), engine.tables[0].embedding_dim), np.float32)
        offsets = np.array([0, len(rows)], np.int64)
        batch = engine.lookup(describe(rows), describe(offsets), None, describe(out), threads=1, keep=keep)
        return out, batch

    def update(
        self,
        name: str,
        rows: NDArray[np.int64],
        gradient: NDArray[np.float32],
        times: NDArray[np.uint32],
    ) -> None:
        """Step the rows of one table once; `rows` are unique."""
        _, batch = self._look_up(name, rows, keep=True)
        self.engines[name].update(
            batch, describe(np.ascontiguousarray(gradient)), threads=1, multiplicity=describe(times)
        )

    def step(self, step: int, ranks: int = 1) -> None:
        """Train one step of `ranks` trainers: their gradients of a row are added up in the order of ranks."""
        batches = [Unique.of(batch_of(self.spec, step, rank)) for rank in range(ranks)]
        for table in self.spec.tables:
            name = table.name
            sums: dict[int, NDArray[np.float32]] = {}
            times: dict[int, int] = {}
            for rank, unique in enumerate(batches):
                gradient = gradient_of(self.lookup(name, unique.rows[name]), step, rank)
                for row, g, n in zip(
                    unique.rows[name].tolist(), gradient, unique.times[name].tolist(), strict=True
                ):
                    sums[row] = sums[row] + g if row in sums else g
                    times[row] = times.get(row, 0) + n
            rows = np.array(sorted(sums), np.int64)
            total = np.array([sums[row] for row in rows.tolist()], np.float32)
            counts = np.array([times[row] for row in rows.tolist()], np.uint32)
            self.update(name, rows, total.reshape(len(rows), table.embedding_dim), counts)

    def state(self, name: str) -> dict[str, Any]:
        """Return all there is of a table."""
        engine = self.engines[name]
        return {
            "weight": engine.weight(0).copy(),
            "state": engine.state(0),
            "count": engine.counts(0),
            "dirty": engine.dirty(0),
        }


OPTIMIZERS: dict[str, FusedOptimizer] = {
    "row_wise_adagrad": RowWiseAdagrad(lr=0.1),
    "adam": Adam(lr=0.05),
}
