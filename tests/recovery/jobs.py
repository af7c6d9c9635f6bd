"""A small model of three tables, its batches and its manager, for the tests of recovery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpr_native.config import DataType, EmbeddingBagConfig, Trackers
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import SGD, FusedOptimizer, RowWiseAdagrad
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

ROWS = (400, 97, 8)
BATCH = 16
STEPS = 40
SHARDS = 4
SAMPLES = BATCH * STEPS
OPTIMIZERS: dict[str, FusedOptimizer] = {"sgd": SGD(lr=0.05), "adagrad": RowWiseAdagrad(lr=0.05)}

# Of STEPS steps: one hour is one step. sqrt(2 * 0.625 * 20) = 5 hours: a full save every 5 steps.
JOB = Job(total_hours=float(STEPS), mtbf_hours=20.0, shards=SHARDS)
COSTS = Costs(save=0.625, load=0.1, reschedule=0.1)

Arrays = list[NDArray[Any]]
Ids = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def configs(data_type: DataType) -> list[EmbeddingBagConfig]:
    """Three tables, the first of two features."""
    tables = (("big", 8, ["a", "b"]), ("mid", 4, ["c"]), ("tiny", 4, ["d"]))
    return [
        EmbeddingBagConfig(
            name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features, data_type=data_type
        )
        for (name, dim, features), rows in zip(tables, ROWS, strict=True)
    ]


class Net(torch.nn.Module):
    """Three tables (two features share the first), dropout and a small MLP."""

    def __init__(
        self,
        optimizer: FusedOptimizer | None,
        trackers: Trackers | None = None,
        data_type: DataType = DataType.FP32,
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tables = EmbeddingBagCollection(
            configs(data_type),
            optimizer=optimizer,
            seed=11,
            trackers=trackers,
        )
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(24, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.tables(ids, offsets)).squeeze(1)
        return out


def batches(steps: int = STEPS, seed: int = 5) -> list[Ids]:
    """Skewed bags of 0 to 3 ids, labels that depend on them."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        ids, lengths = [], []
        for rows in (ROWS[0], ROWS[0], ROWS[1], ROWS[2]):
            sizes = rng.integers(0, 4, BATCH)
            lengths.append(sizes)
            ids.append((rows * rng.random(int(sizes.sum())) ** 3).astype(np.int64))
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        label = torch.from_numpy(rng.random(BATCH) < 0.4).float()
        made.append((torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets), label))
    return made


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    ids, offsets, label = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(ids, offsets), label)


def batch_size(batch: Any) -> int:
    return len(batch[2])


def manage(
    model: Net, path: Path, policy: Policy, *, dense: torch.optim.Optimizer | None = None, **options: Any
) -> RecoveryManager:
    settings: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": SAMPLES, **options}
    return RecoveryManager(model, CheckpointStore(path), policy=policy, dense_optimizer=dense, **settings)


def adam(model: Net) -> torch.optim.Adam:
    return torch.optim.Adam(model.mlp.parameters(), lr=0.01)


def train_step(model: Net, batch: Ids, dense: torch.optim.Optimizer | None = None) -> float:
    if dense is not None:
        dense.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    if dense is not None:
        dense.step()
    return float(loss.detach())


def rows_of(model: Net) -> list[NDArray[np.float32]]:
    """A copy of weight and, with one, state of each table: [rows, dim] and [rows]."""
    engine = model.tables.engine
    arrays = []
    for table in range(len(ROWS)):
        arrays.append(engine.weight(table).copy())
        state = engine.state(table)
        if state is not None:
            arrays.append(state.copy())
    return arrays


def everything(model: Net, dense: torch.optim.Optimizer | None = None) -> Arrays:
    """Every number that training changes, as copies."""
    arrays: Arrays = list(rows_of(model))
    arrays += [value.detach().numpy().copy() for value in model.mlp.state_dict().values()]
    if dense is not None:
        for state in dense.state_dict()["state"].values():
            arrays += [torch.as_tensor(value).numpy().copy() for value in state.values()]
    return arrays


def same(left: Sequence[NDArray[Any]], right: Sequence[NDArray[Any]]) -> bool:
    """Whether all arrays are equal bit for bit."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(left, right, strict=True)
    )


def dirty_bits(model: Net) -> list[NDArray[np.bool_]]:
    return [model.tables.engine.dirty(table).copy() for table in range(len(ROWS))]


def block(table: int) -> int:
    return -(-ROWS[table] // SHARDS)


def in_shard(table: int, shard: int) -> slice:
    return slice(min(ROWS[table], shard * block(table)), min(ROWS[table], (shard + 1) * block(table)))
