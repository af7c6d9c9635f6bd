"""`fit`: a thin training loop around the recovery manager."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from cpr_native.modules import EngineModule
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
    schedulers: Sequence[LRScheduler] = (),
    grad_scaler: torch.amp.GradScaler | None = None,
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
    manager's, which saves its state; None for the one it has; the tables update themselves in backward, and
    the optimizers of attached tables make their steps here too.
    `schedulers`: of the dense optimizer or of the tables' `fused_optimizer`; each makes a step after every
    training step, `ReduceLROnPlateau` with the loss. `grad_scaler`: scales the loss, the tables too; needs
    a dense optimizer. Both join the manager's `app_state`, as `scheduler_0`, ... and `grad_scaler`.
    `batch_size_of(batch)`: samples in it, by default the length of its first member. `callbacks`: called
    after each step with (step, loss). `failures(step)`: shards that fail right after a step, recovered by
    the manager before the next; after a full recovery steps come again, so a failure must be given once.
    `resume`: go on from the manager's store where it holds commits. The last save is committed at return
    unless it fails, which raises; `manager.close()` commits the rest.
    """
    data = loader if isinstance(loader, ResumableLoader) else ResumableLoader(loader, epochs=epochs)
    if dense_optimizer is not None:
        manager.dense_optimizer = dense_optimizer
    optimizers = manager.optimizers
    if grad_scaler is not None and not optimizers:
        raise ValueError("grad_scaler: without a dense optimizer nothing tells it of infinite gradients")
    manager.loader = data
    manager.app_state = _app_state(manager, schedulers, grad_scaler)
    if resume and not manager.running:
        manager.resume()
    manager.start()
    model.train()
    for batch in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_fn(model, batch)
        _backward(model, loss, optimizers, grad_scaler)
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(loss.item())
            else:
                scheduler.step()
        if manager.observes:
            manager.observe(loss.item())
        manager.step(batch_size_of(batch))
        for callback in callbacks:
            callback(manager.steps, loss.item())
        failed = failures(manager.steps) if failures is not None else ()
        if failed:
            manager.recover(failed)
    manager.flush()
    return manager.steps


def _backward(
    model: torch.nn.Module,
    loss: torch.Tensor,
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
) -> None:
    """Backward, which updates the tables, and the steps of torch's optimizers."""
    if scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        return
    for module in model.modules():
        if isinstance(module, EngineModule):
            module.grad_scale = 1.0 / scaler.get_scale()
    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def _app_state(
    manager: RecoveryManager, schedulers: Sequence[LRScheduler], scaler: torch.amp.GradScaler | None
) -> dict[str, Any]:
    members: dict[str, Any] = dict(manager.app_state)
    given: dict[str, Any] = {f"scheduler_{number}": member for number, member in enumerate(schedulers)}
    if scaler is not None:
        given["grad_scaler"] = scaler
    held = {id(member) for member in members.values()}
    return members | {name: member for name, member in given.items() if id(member) not in held}
