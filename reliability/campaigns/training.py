"""A real training job, small enough to be killed hundreds of times: tables, dense parameters, saves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from cpr_native._native import Selection
from cpr_native.config import EmbeddingBagConfig
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import Costs, Job, Plan, Recovery
from cpr_native.policy import Mfu, Ranking, SaveKind, Table
from cpr_native.recovery import RecoveryManager, ResumableLoader
from cpr_native.store import CheckpointStore

ROWS = (2000, 300, 9)
BATCH = 32
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Net(torch.nn.Module):
    """Three tables, dropout (so that the RNG matters) and a small MLP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tables = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=f"t{number}", num_embeddings=rows, embedding_dim=8, feature_names=[f"f{number}"]
                )
                for number, rows in enumerate(ROWS)
            ],
            optimizer=RowWiseAdagrad(lr=0.05),
            seed=11,
        )
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(24, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.mlp(self.tables(ids, offsets)).squeeze(1)
        return out


def batches(steps: int, seed: int = 5) -> list[Batch]:
    """Skewed bags of 0 to 3 ids, and labels."""
    random = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        lengths = [random.integers(0, 4, BATCH) for _ in ROWS]
        ids = [
            (rows * random.random(int(n.sum())) ** 3).astype(np.int64)
            for rows, n in zip(ROWS, lengths, strict=True)
        ]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        label = torch.from_numpy(random.random(BATCH) < 0.4).float()
        made.append((torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets), label))
    return made


def loss_of(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    ids, offsets, label = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(ids, offsets), label)


@dataclass(frozen=True, kw_only=True)
class EveryKind:
    """Full recovery from deltas, with priority commits between them and a base every `base_every`-th save.

    `on_save` is told of each save right before its snapshot begins.
    """

    base_every: int = 16
    on_save: Callable[[], None] = field(default=lambda: None, compare=False)
    name: ClassVar[str] = "every_kind"
    recovery: ClassVar[Recovery] = "full"
    fraction: ClassVar[float] = 1.0

    def interval_hours(self, plan: Plan) -> float:
        return 2.0

    def kind(self, number: int) -> SaveKind:
        if (number + 1) % self.base_every == 0:
            return "base"
        return "priority" if number % 2 else "delta"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        self.on_save()
        return Mfu(fraction=0.1).selections(tables, kind, ranking)


@dataclass
class Training:
    """The model of a job with its optimizer, its loader and its manager over the checkpoint in `path`."""

    path: Path
    steps: int
    shards: int
    on_save: Callable[[], None] = lambda: None
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    model: Net = field(init=False)
    dense: torch.optim.Adam = field(init=False)
    loader: ResumableLoader[Batch] = field(init=False)
    manager: RecoveryManager = field(init=False)

    def __post_init__(self) -> None:
        self.model = Net()
        self.dense = torch.optim.Adam(self.model.mlp.parameters(), lr=0.01)
        self.loader = ResumableLoader(batches(self.steps), epochs=self.epochs)
        torch.manual_seed(7)
        self.manager = RecoveryManager(
            self.model,
            CheckpointStore(self.path),
            policy=EveryKind(on_save=self.on_save),
            # An hour is a step.
            job=Job(total_hours=float(self.steps), mtbf_hours=20.0, shards=self.shards),
            costs=Costs(save=0.625, load=0.1, reschedule=0.1),
            total_samples=self.steps * BATCH,
            dense_optimizer=self.dense,
            loader=self.loader,
            **{"keep": 2, "compact": 4, **self.options},
        )

    def step(self, batch: Batch) -> None:
        """One step of training, then the manager's."""
        train_step(self.model, self.dense, batch)
        self.manager.step(BATCH)

    def digest(self) -> str:
        return digest(self.model, self.dense)

    def rows_digest(self) -> str:
        """Of the rows alone, as `digest_of_rows` of what a restore gives."""
        engine, tables = self.model.tables.engine, range(len(ROWS))
        return digest_of_rows(
            [a for t in tables for a in map(np.asarray, (engine.weight(t), engine.state(t)))]
        )


def train_step(model: Net, dense: torch.optim.Optimizer, batch: Batch) -> None:
    dense.zero_grad()
    loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
    dense.step()


def digest(model: Net, dense: torch.optim.Optimizer) -> str:
    """SHA-256 over rows, their optimizer state, dense parameters and the state of their optimizer."""
    found = hashlib.sha256()
    engine = model.tables.engine
    for table in range(len(ROWS)):
        found.update(np.asarray(engine.weight(table)).tobytes())
        state = engine.state(table)
        assert state is not None
        found.update(state.tobytes())
    for value in model.mlp.state_dict().values():
        found.update(value.detach().numpy().tobytes())
    for state in dense.state_dict()["state"].values():
        for value in state.values():
            found.update(torch.as_tensor(value).numpy().tobytes())
    return found.hexdigest()


def digest_of_rows(arrays: Sequence[np.ndarray[Any, Any]]) -> str:
    """SHA-256 over weight and state of every table, in order."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()


def undisturbed(steps: int, epoch: int | None = None) -> str:
    """The digest of the same job, of epochs of `epoch` steps, without manager, saves or failures."""
    model = Net()
    dense = torch.optim.Adam(model.mlp.parameters(), lr=0.01)
    torch.manual_seed(7)
    for batch in islice(cycle(batches(epoch or steps)), steps):
        train_step(model, dense, batch)
    return digest(model, dense)
