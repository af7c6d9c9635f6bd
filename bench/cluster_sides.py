"""The sides of the cluster's benchmarks; `run(batches)` trains them in turn and returns outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from carriers import TIMEOUT
from plain_pattern import PlainTrainer, Send
from shapes import Shape
from torch import Tensor, nn

from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, Trackers
from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.models.dlrm import DLRM, DLRMConfig
from cpr_native.optim import FusedOptimizer
from cpr_native.sharded import ShardedEmbeddingBagCollection
from cpr_native.store import Placement

SHARDS = 4
WINDOW = 4  # batches that are trained in one go
LEARNING_RATE = 0.01


def tables_of(shape: Shape) -> list[EmbeddingBagConfig]:
    """Return the tables of `shape`, one feature each."""
    return [
        EmbeddingBagConfig(
            name=f"t{table}",
            num_embeddings=rows,
            embedding_dim=shape.dim,
            feature_names=(f"f{table}",),
            weight_init_min=-0.01,
            weight_init_max=0.01,
        )
        for table, rows in enumerate(shape.rows)
    ]


def spec_of(shape: Shape, optimizer: FusedOptimizer, folder: Path) -> ClusterSpec:
    """Return the run: blocks of rows of every table over four shards, one engine thread each."""
    tables = tables_of(shape)
    return ClusterSpec(
        tables=tuple(tables),
        trackers=(Trackers(),) * len(tables),
        optimizer=optimizer,
        placement=Placement(
            shards=SHARDS, blocks={table.name: -(-table.num_embeddings // SHARDS) for table in tables}
        ),
        store=str(folder),
        run_id="bench",
        threads=1,
    )


def local_of(spec: ClusterSpec) -> EmbeddingBagCollection:
    """Return the local collection of the same rows."""
    return EmbeddingBagCollection(spec.tables, optimizer=spec.optimizer, trackers=spec.trackers[0])


class Embeddings:
    """A collection, local or sharded, that gets one gradient for every batch."""

    def __init__(self, module: nn.Module, shape: Shape) -> None:
        self.module = module
        self._offsets = shape.offsets()
        self._gradient = shape.gradient()

    def run(self, batches: Sequence[Tensor]) -> list[Tensor]:
        outs = []
        for ids, following in zip(batches, [*batches[1:], None], strict=True):
            out = self.module(ids, self._offsets)
            ahead(self.module, following, self._offsets)
            out.backward(self._gradient)
            outs.append(out.detach())
        settle(self.module)
        return outs


class Model:
    """A DLRM over a collection, with SGD for its dense layers; outputs are the losses."""

    def __init__(self, module: nn.Module, shape: Shape) -> None:
        config = DLRMConfig(embedding_dim=shape.dim, bottom=(512, 256, shape.dim), top=(512, 256, 1))
        self.module = module
        self._model = DLRM(config, module, features=shape.tables)
        self._optimizer = torch.optim.SGD(self._model.dense_parameters(), lr=LEARNING_RATE)
        generator = torch.Generator().manual_seed(0)
        self._dense = torch.rand((shape.batch, config.dense_features), generator=generator)
        self._clicks = torch.randint(0, 2, (shape.batch,), generator=generator).float()
        self._offsets = shape.offsets()

    def run(self, batches: Sequence[Tensor]) -> list[Tensor]:
        outs = []
        for ids, following in zip(batches, [*batches[1:], None], strict=True):
            self._optimizer.zero_grad()
            logits = self._model(self._dense, ids, self._offsets)
            ahead(self.module, following, self._offsets)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, self._clicks)
            loss.backward()
            self._optimizer.step()
            outs.append(loss.detach())
        settle(self.module)
        return outs


class Plain:
    """The plain pattern, with the initial rows of `spec` and the same gradient for every batch."""

    def __init__(self, send: Send, shape: Shape, spec: ClusterSpec) -> None:
        block = -(-shape.rows[0] // SHARDS)
        self.trainer = PlainTrainer(
            send, shards=SHARDS, block=block, tables=shape.tables, dim=shape.dim, timeout=TIMEOUT
        )
        self._gradient = shape.gradient().numpy()
        for table, config in enumerate(spec.tables):  # one at a time: all would fill the memory once more
            rows = EmbeddingBagCollection([config], optimizer=spec.optimizer).engine.weight(0)
            for shard in range(SHARDS):
                send(shard, "load", (table, rows[shard * block : (shard + 1) * block])).result(TIMEOUT)

    def run(self, batches: Sequence[Tensor]) -> list[Tensor]:
        outs = []
        for ids in batches:
            outs.append(torch.from_numpy(self.trainer.lookup(ids.numpy())))
            self.trainer.update(self._gradient)
        return outs


def sharded_of(directory: Any, spec: ClusterSpec) -> ShardedEmbeddingBagCollection:
    """Return the module of one trainer."""
    return ShardedEmbeddingBagCollection(spec, ShardClients(directory, timeout=TIMEOUT))


def ahead(module: nn.Module, ids: Tensor | None, offsets: Tensor) -> None:
    """Send the next batch's lookups."""
    if ids is not None and isinstance(module, ShardedEmbeddingBagCollection):
        module.prefetch(ids, offsets)


def settle(module: nn.Module) -> None:
    """Wait until shards have applied all."""
    if isinstance(module, ShardedEmbeddingBagCollection):
        module.clients.settle(TIMEOUT)


def bytes_of(module: ShardedEmbeddingBagCollection, ids: Tensor, offsets: Tensor, dim: int) -> int:
    """Return the bytes of arrays that one step moves: ids twice, rows, gradients, multiplicities."""
    from cpr_native._tensor import describe

    batch = module._router.route(describe(ids), describe(offsets), threads=1)
    rows = sum(len(batch.rows(shard)) for shard in range(SHARDS))
    counts = 2 * SHARDS * batch.counts(0).nbytes
    return rows * (2 * 4 + 4 + 2 * 4 * dim) + counts
