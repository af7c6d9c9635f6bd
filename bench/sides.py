"""The sides that the benchmarks compare: this package, torch's sparse EmbeddingBag, FBGEMM's CPU TBE.

Each has `forward(ids)`, `step(ids)` (lookup, backward, update) and `weights()`, one [rows, dim] tensor a
table.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest
import torch
from harness import Shape
from torch import Tensor, nn

from cpr_native import SGD, EmbeddingBagCollection, EmbeddingBagConfig, RowWiseAdagrad, Trackers

OPTIMIZERS = {"sgd": SGD(lr=0.01), "row_wise_adagrad": RowWiseAdagrad(lr=0.01)}
NO_TRACKERS = Trackers(dirty=False, mfu=False, ssu=False)


class Side(Protocol):
    def forward(self, ids: Tensor) -> Tensor: ...

    def step(self, ids: Tensor) -> Tensor: ...

    def weights(self) -> list[Tensor]: ...


def collection(shape: Shape, optimizer: str, trackers: Trackers | None = None) -> EmbeddingBagCollection:
    """Return a collection of `shape`, all trackers on unless said."""
    tables = [
        EmbeddingBagConfig(
            name=f"t{table}",
            num_embeddings=shape.rows,
            embedding_dim=shape.dim,
            feature_names=(f"f{table}",),
            weight_init_min=-0.01,
            weight_init_max=0.01,
        )
        for table in range(shape.tables)
    ]
    return EmbeddingBagCollection(tables, optimizer=OPTIMIZERS[optimizer], trackers=trackers)


class Ours:
    def __init__(self, shape: Shape, optimizer: str, trackers: Trackers | None = None) -> None:
        self.module = collection(shape, optimizer, trackers)
        self._offsets = shape.offsets()
        self._gradient = shape.gradient()

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self.module(ids, self._offsets)
        return out

    def step(self, ids: Tensor) -> Tensor:
        out: Tensor = self.module(ids, self._offsets)
        out.backward(self._gradient)
        return out.detach()

    def weights(self) -> list[Tensor]:
        return [weight.detach() for weight in self.module.state_dict().values()]


class TorchBags:
    """One `torch.nn.EmbeddingBag(sparse=True)` a table and a torch optimizer over them."""

    def __init__(self, shape: Shape, optimizer: type[torch.optim.Optimizer]) -> None:
        torch.sparse.check_sparse_tensor_invariants.disable()  # its default, but said: else it warns
        self._shape = shape
        self._offsets = torch.arange(0, shape.batch * shape.pooling, shape.pooling)
        self._gradients = [part.contiguous() for part in shape.gradient().split(shape.dim, dim=1)]
        self._bags = nn.ModuleList(
            nn.EmbeddingBag(shape.rows, shape.dim, mode="sum", sparse=True) for _ in range(shape.tables)
        )
        self._optimizer = optimizer(self._bags.parameters(), lr=0.01)  # type: ignore[call-arg]

    def _lookup(self, ids: Tensor) -> list[Tensor]:
        parts = ids.view(self._shape.tables, -1)
        return [bag(part, self._offsets) for bag, part in zip(self._bags, parts, strict=True)]

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat(self._lookup(ids), dim=1)

    def step(self, ids: Tensor) -> Tensor:
        outs = self._lookup(ids)
        torch.autograd.backward(outs, self._gradients)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.cat([out.detach() for out in outs], dim=1)

    def weights(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self._bags.parameters()]


class Fbgemm:
    """FBGEMM's CPU table-batched embedding; the test is skipped where fbgemm-gpu-cpu is absent."""

    def __init__(self, shape: Shape, optimizer: str) -> None:
        ops: Any = pytest.importorskip(
            "fbgemm_gpu.split_table_batched_embeddings_ops_training",
            reason="the yardstick needs fbgemm-gpu-cpu==1.8.0",
        )
        common: Any = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        configs: Any = pytest.importorskip("fbgemm_gpu.split_embedding_configs")
        spec = (shape.rows, shape.dim, common.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
        kinds = {"sgd": "EXACT_SGD", "row_wise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
        self._tbe = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [spec] * shape.tables,
            optimizer=configs.EmbOptimType[kinds[optimizer]],
            learning_rate=0.01,
            eps=1e-8,
            pooling_mode=common.PoolingMode.SUM,
        )
        self._offsets = shape.offsets()
        self._gradient = shape.gradient()

    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            out: Tensor = self._tbe(ids, self._offsets)
        return out

    def step(self, ids: Tensor) -> Tensor:
        out: Tensor = self._tbe(ids, self._offsets)
        out.backward(self._gradient)
        return out.detach()

    def weights(self) -> list[Tensor]:
        weights: list[Tensor] = self._tbe.split_embedding_weights()
        return weights


def copy_weights(source: Side, target: Side) -> None:
    """Give both sides the same rows."""
    for mine, other in zip(source.weights(), target.weights(), strict=True):
        other.copy_(mine)


def assert_same_training(ours: Side, yardstick: Side, batches: list[Tensor]) -> None:
    """Train both on the same batches and compare every output and, at the end, every row."""
    copy_weights(ours, yardstick)
    for ids in batches:
        torch.testing.assert_close(ours.step(ids), yardstick.step(ids), rtol=1e-4, atol=1e-6)
    for mine, other in zip(ours.weights(), yardstick.weights(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
