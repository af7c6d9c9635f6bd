"""`fit`: a thin training loop around the recovery manager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cpr_native.recovery import RecoveryManager, ResumableLoader


def _length_of_first(batch: Any) -> int:
    return len(batch[0])


def fit(
    model: torch.nn.Module,
    loader: Iterable[Any],
    manager: RecoveryManager,
    *,
    loss_fn: Callable[[torch.nn.Module, Any], torch.Tensor],
    dense_optimizer: torch.optim.Optimizer | None = None,
    epochs: int = 1,
    batch_size_of: Callable[[Any], int] = _length_of_first,
    failures: Callable[[int], Sequence[int]] | None = None,
    callbacks: Sequence[Callable[[int, float], None]] = (),
    resume: bool = True,
) -> int:
    """Train `model` on `loader` for `epochs` epochs, saving as `manager` says, and return the steps trained.

    `loader`: gives batches; its data position is saved by its own `state_dict()` where it has one, else as
    a count of batches (see `ResumableLoader`). `loss_fn(model, batch)`: the loss, a scalar tensor.
    `epochs`: not used when `loader` is a `ResumableLoader`, which has its own. `dense_optimizer`: becomes the
    manager's, which saves its state; None for the one it has; the tables update themselves in backward.
    `batch_size_of(batch)`: samples in it, by default the length of its first member. `callbacks`: called
    after each step with (step, loss). `failures(step)`: shards that fail right after a step, recovered by
    the manager before the next; after a full recovery steps come again, so a failure must be given once.
    `resume`: go on from the manager's store where it holds commits. The last save is committed at return
    unless it fails, which raises; `manager.close()` commits the rest.
    """
    data = loader if isinstance(loader, ResumableLoader) else ResumableLoader(loader, epochs=epochs)
    if dense_optimizer is not None:
        manager.dense_optimizer = dense_optimizer
    optimizer = manager.dense_optimizer
    manager.loader = data
    if resume and not manager.running:
        manager.resume()
    manager.start()
    model.train()
    for batch in data:
        if optimizer is not None:
            optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        manager.step(batch_size_of(batch))
        for callback in callbacks:
            callback(manager.steps, loss.item())
        failed = failures(manager.steps) if failures is not None else ()
        if failed:
            manager.recover(failed)
    manager.flush()
    return manager.steps
