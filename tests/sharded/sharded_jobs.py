"""A model over shards beside the local collection of the same tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType, RowWiseAdagrad, Trackers
from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.config import DataType
from cpr_native.optim import FusedOptimizer
from cpr_native.sharded import ShardedEmbeddingBagCollection
from cpr_native.store import Placement

TIMEOUT = 30.0
SHARDS = 3
BATCH = 7
TRACKERS = Trackers(drift=True)


def tables_of(
    *poolings: str, dims: Sequence[int] = (8, 8, 4), data_type: DataType = DataType.FP32
) -> list[EmbeddingBagConfig]:
    """Three tables, one with fewer rows than shards and one with two features."""
    given = (("users", 61, "viewer owner"), ("few", 2, "kind"), ("items", 40, "item"))
    return [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=rows,
            embedding_dim=dim,
            feature_names=features.split(),
            pooling=PoolingType[pooling],
            data_type=data_type,
        )
        for (name, rows, features), pooling, dim in zip(given, poolings or ("SUM",) * 3, dims, strict=True)
    ]


def spec_of(path: Path, tables: Sequence[EmbeddingBagConfig], **options: Any) -> ClusterSpec:
    """Row-wise unless `placement` is given."""
    shards = options.pop("shards", SHARDS)
    placement = options.pop("placement", None) or Placement(
        shards=shards, blocks={table.name: -(-table.num_embeddings // shards) for table in tables}
    )
    options.setdefault("optimizer", RowWiseAdagrad(lr=0.1))
    return ClusterSpec(
        tables=tuple(tables),
        trackers=(TRACKERS,) * len(tables),
        placement=placement,
        store=str(path),
        run_id="run",
        seed=3,
        threads=1,
        **options,
    )


def local_of(spec: ClusterSpec, **options: Any) -> EmbeddingBagCollection:
    """The local collection of the same tables."""
    return EmbeddingBagCollection(
        spec.tables, optimizer=spec.optimizer, seed=spec.seed, trackers=TRACKERS, **options
    )


@contextmanager
def shards_of(spec: ClusterSpec) -> Iterator[LocalDirectory]:
    directory = LocalDirectory(spec)
    try:
        yield directory
    finally:
        directory.close()


def sharded_of(directory: Any, spec: ClusterSpec, **options: Any) -> ShardedEmbeddingBagCollection:
    """A trainer's module; what `ShardClients` takes goes there."""
    own = {name: options.pop(name) for name in ("is_weighted", "mean_over_ranks") if name in options}
    clients = ShardClients(directory, timeout=TIMEOUT, patience=TIMEOUT, **options)
    return ShardedEmbeddingBagCollection(spec, clients, **own)


@dataclass(frozen=True)
class Bags:
    ids: Tensor
    offsets: Tensor
    weights: Tensor


def bags_of(tables: Sequence[EmbeddingBagConfig], seed: int, *, batch: int = BATCH, longest: int = 3) -> Bags:
    """Bags of 0 to `longest` skewed ids for every feature, and per-sample weights."""
    rng = np.random.default_rng(seed)
    rows = [table.num_embeddings for table in tables for _ in table.feature_names]
    lengths = rng.integers(0, longest + 1, (len(rows), batch))
    ids = [
        (n * rng.random(int(own.sum())) ** 2).astype(np.int64) for n, own in zip(rows, lengths, strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.concatenate(ids)
    weights = rng.standard_normal(len(flat)).astype(np.float32)
    return Bags(torch.from_numpy(flat), torch.from_numpy(offsets), torch.from_numpy(weights))


def gradient_for(out: Tensor, seed: int) -> Tensor:
    """A gradient that depends on every number of the output, so that a stale row shows."""
    generator = torch.Generator().manual_seed(seed)
    return out.detach() * 0.25 + torch.randn(out.shape, generator=generator)


def table_state(directory: LocalDirectory, name: str) -> dict[str, Any]:
    """All that the shards hold of a table, put together."""
    shards = range(directory.shards)
    parts = [directory.handle(shard).call("rows", name).result(TIMEOUT) for shard in shards]
    parts = sorted((part for part in parts if part["begin"] is not None), key=lambda part: part["begin"])
    return {
        key: None if parts[0][key] is None else np.concatenate([part[key] for part in parts])
        for key in ("weight", "state", "count", "dirty")
    }


def local_state(local: EmbeddingBagCollection, number: int) -> dict[str, Any]:
    """The same of the local collection."""
    engine = local.engine
    return {
        "weight": engine.weight(number).copy(),
        "state": engine.state(number),
        "count": engine.counts(number),
        "dirty": engine.dirty(number),
    }


def check_same(directory: LocalDirectory, local: EmbeddingBagCollection) -> None:
    """Assert that rows, optimizer state, counts and dirty bits are the same, bit for bit."""
    for number, table in enumerate(local.embedding_bag_configs()):
        got, expected = table_state(directory, table.name), local_state(local, number)
        for key, value in expected.items():
            if value is None:
                assert got[key] is None
                continue
            assert got[key].dtype == value.dtype
            assert got[key].tobytes() == value.tobytes(), (table.name, key)


def settle(*modules: ShardedEmbeddingBagCollection) -> None:
    """Wait until all updates are applied."""
    for module in modules:
        module.clients.settle(TIMEOUT)


def optimizers() -> dict[str, FusedOptimizer]:
    """One of each kind."""
    from cpr_native import SGD, Adagrad, Adam, PartialRowWiseAdam

    return {
        "sgd": SGD(lr=0.1, weight_decay=0.01),
        "row_wise_adagrad": RowWiseAdagrad(lr=0.1),
        "adagrad": Adagrad(lr=0.1),
        "adam": Adam(lr=0.05),
        "partial_row_wise_adam": PartialRowWiseAdam(lr=0.05),
    }


def step(module: Any, bags: Bags, seed: int, *, weighted: bool = False) -> Tensor:
    """Train one batch; returns the output."""
    out: Tensor = module(bags.ids, bags.offsets, *([bags.weights] if weighted else []))
    out.backward(gradient_for(out, seed))
    return out.detach()
