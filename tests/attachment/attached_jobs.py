"""A model of torch's own embedding modules, its optimizers and its manager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment import Attachment, attach
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

ROWS = (61, 24)
DIM, BATCH, STEPS, SHARDS = 4, 8, 14, 4
# One hour is one step; a full save every 5.
JOB = Job(total_hours=float(STEPS), mtbf_hours=20.0, shards=SHARDS)
COSTS = Costs(save=0.625, load=0.1, reschedule=0.1)

Batch = tuple[torch.Tensor, torch.Tensor]


class Net(nn.Module):
    """A bag, a plain lookup and a dense layer with dropout."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.bag = nn.EmbeddingBag(ROWS[0], DIM, sparse=sparse, mode="sum")
        self.items = nn.Embedding(ROWS[1], DIM, sparse=sparse)
        self.top = nn.Sequential(nn.Linear(2 * DIM, 4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.bag(ids[:, :3]), self.items(ids[:, 3] % ROWS[1])], dim=1)
        out: torch.Tensor = self.top(both).squeeze(1)
        return out

    def tables(self) -> list[nn.Parameter]:
        return [self.bag.weight, self.items.weight]


def batches() -> list[Batch]:
    rng = np.random.default_rng(5)
    made = []
    for _ in range(STEPS):
        ids = (ROWS[0] * rng.random((BATCH, 4)) ** 3).astype(np.int64)
        made.append((torch.from_numpy(ids), torch.from_numpy(rng.random(BATCH)).float()))
    return made


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


Make = Callable[[Net], list[Optimizer]]


def _split(kind: Any, **options: Any) -> Make:
    """Tables by one optimizer, the dense parameters by Adam."""
    return lambda net: [kind(net.tables(), **options), torch.optim.Adam(net.top.parameters(), lr=0.01)]


def _whole(kind: Any, **options: Any) -> Make:
    return lambda net: [kind(net.parameters(), **options)]


# name -> sparse gradients, optimizers: those whose state of a row goes with the row.
OPTIMIZERS: dict[str, tuple[bool, Make]] = {
    "sgd": (True, _split(torch.optim.SGD, lr=0.05)),
    "adagrad": (True, _split(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1)),
    "sparse_adam": (True, _split(torch.optim.SparseAdam, lr=0.01)),
    "adam": (False, _whole(torch.optim.Adam, lr=0.01, amsgrad=True)),
    "momentum": (False, _whole(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.5)),
    "rmsprop": (False, _whole(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True)),
    "rprop": (False, _whole(torch.optim.Rprop, lr=0.01)),
}
# Those that keep their state to themselves.
OPAQUE: dict[str, tuple[bool, Make]] = {
    "lbfgs": (False, _whole(torch.optim.LBFGS, lr=0.01, max_iter=2)),
    "sparse_momentum": (True, _split(torch.optim.SGD, lr=0.05, momentum=0.9)),
}


class Run:
    """A model, attached, with its optimizers."""

    def __init__(self, sparse: bool, make: Make) -> None:
        self.model = Net(sparse=sparse)
        self.optimizers = make(self.model)
        self.attachment: Attachment = attach(self.model, optimizer=self.optimizers)

    def manager(self, path: Path, policy: Policy, **options: Any) -> RecoveryManager:
        settings: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": BATCH * STEPS, **options}
        dense = self.optimizers[-1]
        return RecoveryManager(
            self.model, CheckpointStore(path), policy=policy, dense_optimizer=dense, **settings
        )

    def step(self, batch: Batch) -> None:
        def closure() -> torch.Tensor:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = loss_of(self.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if isinstance(self.optimizers[0], torch.optim.LBFGS):
            self.optimizers[0].step(closure)  # type: ignore[no-untyped-call]
            return
        closure()
        for optimizer in self.optimizers:
            optimizer.step()

    def records(self, table: int) -> NDArray[np.float32]:
        """A copy of a table's rows: weight and all of the optimizer's state that has such rows, [rows, k]."""
        weight = self.model.tables()[table]
        state = self.optimizers[0].state.get(weight, {})
        columns = [value for value in state.values() if getattr(value, "shape", None) == weight.shape]
        return torch.cat([weight.detach(), *columns], dim=1).numpy().copy()

    def everything(self) -> dict[str, Any]:
        """Everything that training changes, as copies."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizers": copied(states),
        }


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to_dense().clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list | tuple) else value


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bits; NumPy has no bfloat16."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(left: Any, right: Any) -> bool:
    """Whether two nested values are equal, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        equal = isinstance(right, torch.Tensor) and left.shape == right.shape and left.dtype == right.dtype
        return equal and bytes_of(left) == bytes_of(right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
