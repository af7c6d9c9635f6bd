"""A small model with embedding modules of several kinds, the same with one collection, and its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from recovery.jobs import BATCH, COSTS, JOB, SAMPLES, STEPS, Arrays
from torch import Tensor, nn

from cpr_native import convert
from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.modules import EmbeddingBagCollection, EngineModule
from cpr_native.optim import FusedOptimizer, RowWiseAdagrad
from cpr_native.policy import Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

ROWS, DIMS, IDS = (400, 97, 8, 60), (8, 4, 4, 4), (3, 1, 2, 2)
NAMES = ["bags.0", "bags.1", "bags.2", "side.seen"]

Batch = tuple[list[Tensor], Tensor]


class Towers(nn.Module):
    """Three torch EmbeddingBags and, nested, a torch Embedding; dropout and a small MLP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.bags = nn.ModuleList(
            [nn.EmbeddingBag(ROWS[t], DIMS[t], mode="sum", sparse=True) for t in range(3)]
        )
        self.side = nn.ModuleDict({"seen": nn.Embedding(ROWS[3], DIMS[3], sparse=True)})
        self.mlp = nn.Sequential(nn.Linear(sum(DIMS), 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, ids: list[Tensor]) -> Tensor:
        pooled = [bag(of) for bag, of in zip(self.bags, ids, strict=False)]
        pooled.append(self.side["seen"](ids[3]).sum(1))
        out: Tensor = self.mlp(torch.cat(pooled, 1)).squeeze(1)
        return out


class OneCollection(nn.Module):
    """What `Towers` computes, with the weights it begins with, by one collection."""

    def __init__(self, optimizer: FusedOptimizer) -> None:
        super().__init__()
        like = Towers()
        weights = [bag.weight for bag in like.bags] + [like.side["seen"].weight]
        self.tables = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name, num_embeddings=ROWS[t], embedding_dim=DIMS[t], feature_names=[name]
                )
                for t, name in enumerate(("a", "b", "c", "d"))
            ],
            optimizer=optimizer,
            _weights=weights,
        )
        self.mlp = like.mlp

    def forward(self, ids: list[Tensor]) -> Tensor:
        lengths = torch.cat([torch.full((len(of),), of.shape[1]) for of in ids])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        pooled = self.tables(torch.cat([of.reshape(-1) for of in ids]), offsets)
        out: Tensor = self.mlp(pooled).squeeze(1)
        return out


def towers(optimizer: FusedOptimizer | None = None, trackers: Trackers | None = None) -> Towers:
    return convert(Towers(), optimizer=optimizer or RowWiseAdagrad(lr=0.05), trackers=trackers)


def batches(steps: int = STEPS, seed: int = 5) -> list[Batch]:
    rng = np.random.default_rng(seed)
    return [
        (
            [
                torch.from_numpy((rows * rng.random((BATCH, n)) ** 3).astype(np.int64))
                for rows, n in zip(ROWS, IDS, strict=True)
            ],
            torch.from_numpy(rng.random(BATCH) < 0.4).float(),
        )
        for _ in range(steps)
    ]


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    ids, label = batch
    return nn.functional.binary_cross_entropy_with_logits(model(ids), label)


def batch_size(batch: Any) -> int:
    return len(batch[1])


def dense_of(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.mlp.parameters(), lr=0.01)


def manage(model: nn.Module, path: Path, policy: Policy, **options: Any) -> RecoveryManager:
    settings: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": SAMPLES, **options}
    return RecoveryManager(model, CheckpointStore(path), policy=policy, **settings)


def train(model: nn.Module, steps: list[Batch], manager: RecoveryManager | None = None) -> None:
    """The tables' steps alone; each counted by `manager`."""
    for batch in steps:
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        if manager is not None:
            manager.step(BATCH)


def engine_modules(model: nn.Module) -> list[EngineModule]:
    return [module for module in model.modules() if isinstance(module, EngineModule)]


def tracked(model: nn.Module) -> Arrays:
    """Dirty bits and counts of all tables, as copies."""
    found: list[NDArray[Any]] = []
    for module in engine_modules(model):
        for table in range(len(module.engine.tables)):
            found += [module.engine.dirty(table), module.engine.counts(table)]
    return found


def rows_of(model: nn.Module) -> Arrays:
    """Weight and state of all tables, as copies."""
    found: list[NDArray[Any]] = []
    for module in engine_modules(model):
        for table in range(len(module.engine.tables)):
            state = module.engine.state(table)
            found += [module.engine.weight(table).copy(), *([] if state is None else [state])]
    return found


def everything(model: Any, dense: torch.optim.Optimizer) -> Arrays:
    arrays = rows_of(model) + [value.numpy().copy() for value in model.mlp.state_dict().values()]
    for state in dense.state_dict()["state"].values():
        arrays += [torch.as_tensor(value).numpy().copy() for value in state.values()]
    return arrays
