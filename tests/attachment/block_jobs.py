"""Models without embeddings, their optimizers, and jobs that lose shards of their blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment import Attachment
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore

SHARDS, BATCH, STEPS = 4, 8, 12
JOB = Job(total_hours=float(STEPS), mtbf_hours=20.0, shards=SHARDS)
COSTS = Costs(save=0.625, load=0.1, reschedule=0.1)


class Mlp(nn.Module):
    """Two layers, a tied one and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh())
        self.again = nn.Linear(6, 9)
        self.again.register_parameter("weight", self.inner.get_parameter("0.weight"))
        self.out = nn.Linear(9, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.again(self.inner(x))) * self.scale
        return out


class Cnn(nn.Module):
    """A convolution, batch norm with its buffers, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.features = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten())
        self.out = nn.Linear(5 * 16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.features(x))
        return out


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (6,)),
    "cnn": (Cnn, (1, 6, 6)),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def step(model: nn.Module, optimizer: Optimizer, number: int) -> None:
    """One step on data that is a function of its number."""
    shape = next(shape for kind, shape in MODELS.values() if isinstance(model, kind))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(BATCH, *shape, generator=generator)
    y = torch.randint(0, 2, (BATCH,), generator=generator)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


def manager(
    model: nn.Module, optimizer: Optimizer | None, path: Path, policy: Policy, **options: Any
) -> RecoveryManager:
    settings: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": BATCH * STEPS, **options}
    return RecoveryManager(model, CheckpointStore(path), policy=policy, dense_optimizer=optimizer, **settings)


def records(model: nn.Module, optimizer: Optimizer | None, name: str) -> NDArray[np.float32]:
    """A parameter and all of its state of its shape, [state + 1, elements], a copy."""
    weight = model.get_parameter(name)
    state = {} if optimizer is None else optimizer.state.get(weight, {})
    shaped = [value for key, value in state.items() if key != "step" and value.shape == weight.shape]
    together = torch.stack([weight.detach(), *shaped]).reshape(1 + len(shaped), -1)
    found: NDArray[np.float32] = together.detach().numpy().copy()
    return found


def clean(attachment: Attachment) -> None:
    attachment.sync()
    for table, spec in enumerate(attachment.engine.tables):
        attachment.engine.clear_trackers(table, 0, spec.num_embeddings, dirty=True)


def dirty(attachment: Attachment) -> dict[str, list[int]]:
    """The dirty blocks of each table that has any."""
    found = {
        name: list(map(int, attachment.engine.dirty(table).nonzero()[0]))
        for table, name in enumerate(attachment.table_names)
    }
    return {name: rows for name, rows in found.items() if rows}
