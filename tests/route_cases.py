"""A router beside one collection of all rows, for the tests of both."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, RoutedBatch, Router, TableSpec
from cpr_native._tensor import describe


def ref(values: NDArray[Any]) -> tuple[int, tuple[int, ...], str]:
    return describe(np.ascontiguousarray(values))


@dataclass(kw_only=True)
class Cluster:
    """Tables of `rows` x `dims`, cut among shards as `ranges` says, beside one collection of all rows."""

    rows: Sequence[int]
    dims: Sequence[int]
    features: Sequence[int]
    ranges: Sequence[Sequence[tuple[int, int]]]
    poolings: Sequence[str] = ()
    threads: int = 2
    dtype: str = "float32"
    specs: list[TableSpec] = field(init=False)

    def __post_init__(self) -> None:
        poolings = self.poolings or ["sum"] * len(self.rows)
        self.specs = [
            TableSpec(
                name=f"t{t}",
                num_embeddings=n,
                embedding_dim=dim,
                pooling=pooling,
                init_min=-1.0,
                init_max=1.0,
                dtype=self.dtype,
            )
            for t, (n, dim, pooling) in enumerate(zip(self.rows, self.dims, poolings, strict=True))
        ]
        self.router = Router(self.specs, self.features, self.ranges)
        self.local = Collection(self.specs, self.features, optimizer="sgd", learning_rate=1.0, seed=1)

    def route(self, ids: NDArray[Any], offsets: NDArray[Any]) -> RoutedBatch:
        return self.router.route(describe(ids), describe(offsets), threads=self.threads)

    def rows_of(self, shard: int, counts: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """The rows that `shard` would send."""
        ends = np.cumsum(counts)
        parts = [
            self.local.weight(t)[rows[end - count : end] + self.ranges[t][shard][0]]
            .astype(np.float32)
            .ravel()
            for t, (count, end) in enumerate(zip(counts, ends, strict=True))
        ]
        return np.concatenate(parts)

    def fill(self, batch: RoutedBatch) -> None:
        for shard in range(len(self.ranges[0])):
            values = self.rows_of(shard, batch.counts(shard), batch.rows(shard))
            batch.fill(shard, describe(values), threads=self.threads)

    def pool(self, batch: RoutedBatch, weights: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        out = np.full((batch.batch_size, self.router.output_dim), np.nan, np.float32)
        batch.pool(None if weights is None else describe(weights), describe(out), threads=self.threads)
        return out

    def look_up(
        self, ids: NDArray[Any], offsets: NDArray[Any], weights: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """What the local collection pools."""
        out = np.empty(((len(offsets) - 1) // len(self.features), self.local.output_dim), np.float32)
        given = None if weights is None else describe(weights)
        self.local.lookup(describe(ids), describe(offsets), given, describe(out), threads=1, keep=False)
        return out


def cut_rows(rng: np.random.Generator, rows: int, shards: int) -> list[tuple[int, int]]:
    """Random ranges, of any sizes and in any order, some empty."""
    cuts = np.sort(rng.integers(0, rows + 1, shards - 1))
    bounds = [0, *cuts.tolist(), rows]
    ranges = list(itertools.pairwise(bounds))
    return [ranges[i] for i in rng.permutation(shards)]


def random_cluster(rng: np.random.Generator, threads: int, poolings: Sequence[str] = ("sum",)) -> Cluster:
    tables = int(rng.integers(1, 5))
    rows = rng.integers(1, 300, tables).tolist()
    shards = int(rng.integers(1, 6))
    features = [*range(tables), *rng.integers(0, tables, int(rng.integers(0, 4))).tolist()]
    return Cluster(
        rows=rows,
        dims=rng.choice([1, 3, 8, 16, 20], tables).tolist(),
        features=rng.permutation(features).tolist(),
        ranges=[cut_rows(rng, n, shards) for n in rows],
        poolings=rng.choice(list(poolings), tables).tolist(),
        threads=threads,
    )


def random_ids(
    rng: np.random.Generator, cluster: Cluster, batch: int, *, longest: int = 3
) -> tuple[NDArray[Any], NDArray[Any]]:
    kind = np.int32 if rng.random() < 0.5 else np.int64
    lengths = rng.integers(0, longest + 1, batch * len(cluster.features))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [np.zeros(0, kind)]
    for f, table in enumerate(cluster.features):
        n = cluster.rows[table]
        count = int(offsets[(f + 1) * batch] - offsets[f * batch])
        ids.append((n * rng.random(count) ** 3).astype(kind))
    return np.concatenate(ids), offsets.astype(kind)
