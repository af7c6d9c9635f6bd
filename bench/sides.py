"""The sides that the benchmarks compare: this package, torch's sparse EmbeddingBag, FBGEMM's CPU TBE.

Each has `forward(ids)`, `step(ids)` (lookup, backward, row-wise Adagrad) and `weights()`, one [rows, dim]
tensor a table.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest
import torch
from shapes import Shape
from torch import Tensor, nn

from cpr_native import EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad, Trackers

LEARNING_RATE = 0.01
EPS = 1e-8
ALL_TRACKERS = Trackers(drift=True)
NO_TRACKERS = Trackers(dirty=False, mfu=False, ssu=False)
METADATA = 16  # bytes a row with ALL_TRACKERS


class Side(Protocol):
    gradient: Tensor

    def forward(self, ids: Tensor) -> Tensor: ...

    def step(self, ids: Tensor) -> Tensor: ...

    def weights(self) -> list[Tensor]: ...


def collection(shape: Shape, trackers: Trackers = ALL_TRACKERS) -> EmbeddingBagCollection:
    """Return a collection of `shape` under row-wise Adagrad."""
    tables = [
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
    return EmbeddingBagCollection(
        tables, optimizer=RowWiseAdagrad(lr=LEARNING_RATE, eps=EPS), trackers=trackers
    )


class Ours:
    def __init__(self, shape: Shape, trackers: Trackers = ALL_TRACKERS) -> None:
        self.module = collection(shape, trackers)
        self.gradient = shape.gradient()
        self._offsets = shape.offsets()

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.module(ids, self._offsets)
        return out

    def step(self, ids: Tensor) -> Tensor:
        out: Tensor = self.module(ids, self._offsets)
        out.backward(self.gradient)
        return out.detach()

    def weights(self) -> list[Tensor]:
        return [weight.detach() for weight in self.module.state_dict().values()]


class TorchBags:
    """One `torch.nn.EmbeddingBag(sparse=True)` a table, with the rows of `weights`, and torch's Adagrad."""

    def __init__(self, shape: Shape, weights: list[Tensor]) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # its default, but said: else it warns
        self.gradient = shape.gradient()
        self._shape = shape
        self._offsets = torch.arange(0, shape.batch * shape.pooling, shape.pooling)
        self._bags = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum", sparse=True)
            for weight in weights
        )
        self._optimizer = torch.optim.Adagrad(self._bags.parameters(), lr=LEARNING_RATE, eps=EPS)

    def _lookup(self, ids: Tensor) -> list[Tensor]:
        parts = ids.view(self._shape.tables, -1)
        return [bag(part, self._offsets) for bag, part in zip(self._bags, parts, strict=True)]

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat(self._lookup(ids), dim=1)

    def step(self, ids: Tensor) -> Tensor:
        out = torch.cat(self._lookup(ids), dim=1)
        out.backward(self.gradient)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return out.detach()

    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self._bags.parameters()]


class Fbgemm:
    """FBGEMM's CPU table-batched embedding with the rows of `weights`; skipped where it isn't installed."""

    def __init__(self, shape: Shape, weights: list[Tensor]) -> None:
        ops: Any = pytest.importorskip(
            "fbgemm_gpu.split_table_batched_embeddings_ops_training",
            reason="the yardstick needs fbgemm-gpu-cpu==1.8.0",
        )
        common: Any = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        configs: Any = pytest.importorskip("fbgemm_gpu.split_embedding_configs")
        host, cpu = common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU
        self._tbe = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, shape.dim, host, cpu) for rows in shape.rows],
            optimizer=configs.EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPS,
            pooling_mode=common.PoolingMode.SUM,
        )
        self.gradient = shape.gradient()
        self._offsets = shape.offsets()
        for target, weight in zip(self.weights(), weights, strict=True):
            target.copy_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self._tbe(ids, self._offsets)
        return out

    def step(self, ids: Tensor) -> Tensor:
        out: Tensor = self._tbe(ids, self._offsets)
        out.backward(self.gradient)
        return out.detach()

    def weights(self) -> list[Tensor]:
        weights: list[Tensor] = self._tbe.split_embedding_weights()
        return weights


def assert_same_training(ours: Side, yardstick: Side, batches: list[Tensor]) -> None:
    """Train both on the same batches: outputs and rows must be close, rows of no batch equal to the bit."""
    for ids in batches:
        torch.testing.assert_close(ours.step(ids), yardstick.step(ids), rtol=1e-4, atol=1e-6)
    for table, (mine, other) in enumerate(zip(ours.weights(), yardstick.weights(), strict=True)):
        parts = [ids.view(len(ours.weights()), -1)[table] for ids in batches]
        touched = torch.cat(parts).unique()
        differ = (mine != other).any(dim=1).nonzero().squeeze(1)
        assert torch.isin(differ, touched).all()
        torch.testing.assert_close(mine[touched], other[touched], rtol=1e-4, atol=1e-6)
