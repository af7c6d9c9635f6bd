"""`fit`: a thin training loop around the recovery manager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cpr_native.recovery import RecoveryManager

Failures = Callable[[int], Sequence[int]]


def fit(
    model: torch.nn.Module,
    loader: Iterable[Any],
    manager: RecoveryManager,
    *,
    loss_fn: Callable[[torch.nn.Module, Any], torch.Tensor],
    dense_optimizer: torch.optim.Optimizer | None = None,
    epochs: int = 1,
    batch_size_of: Callable[[Any], int] = lambda batch: len(batch[0]),
    failures: Failures | None = None,
    callbacks: Sequence[Callable[[int, float], None]] = (),
    resume: bool = True,
) -> int:
    """Train `model`; `loss_fn(model, batch)` gives the loss; `failures(step)` names shards that fail after a step."""
