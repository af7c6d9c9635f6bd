"""Which rows torch's own optimizers change; versions can't tell (fused optimizers don't even bump them)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from cpr_native._tensor import describe
from cpr_native.device.engine import DeviceEngine
from cpr_native.modules._plan import Engine


class Update(NamedTuple):
    """One table in one step of an optimizer: every changed row has a nonzero (an entry, if sparse) in `grad`.

    `grad` None: any row may have changed. A row's optimizer state counts as part of it.
    """

    table: int
    weight: Tensor
    grad: Tensor | None


class Watched(Protocol):
    """What `mark_updates` needs of a module or attachment."""

    @property
    def engine(self) -> Engine:
        """The engine that has the tables' dirty bits."""
        ...

    _versions: list[int]


W = TypeVar("W")
Weights = Callable[[W], Sequence[tuple[int, Tensor]]]
Before = Callable[[W, Optimizer], None]
After = Callable[[W, Optimizer, Sequence[Update]], None]


def watch_optimizers(
    watched: W, weights_of: Weights[W], after: After[W], before: Before[W] | None = None
) -> Callable[[], None]:
    """Call `before` and `after` around every `step()` of any torch optimizer while `watched` lives.

    `weights_of` gives tables and their weights now; `after` gets those that the step updated, and isn't
    called without any or for a step that AMP skipped. Returns what ends it; `watched` is held weakly.
    """
    reference = weakref.ref(watched)
    seen: dict[int, tuple[Tensor, int]] = {}

    def step_begins(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        target = reference()
        seen.clear()  # of a step that raised
        if target is None:
            return
        if before is not None:
            before(target, optimizer)
        grads = ((table, weight.grad) for table, weight in weights_of(target))
        seen.update({table: (grad, grad._version) for table, grad in grads if grad is not None})

    def step_ended(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        target = reference()
        if target is not None:
            updates = _updates(optimizer, weights_of(target), seen)
            if updates:
                after(target, optimizer, updates)
        seen.clear()

    handles = [register_optimizer_step_pre_hook(step_begins), register_optimizer_step_post_hook(step_ended)]

    def remove() -> None:
        for handle in handles:
            handle.remove()

    return weakref.finalize(watched, remove)


def mark_updates(watched: Watched, optimizer: Optimizer, updates: Sequence[Update]) -> None:
    """Make the rows that a step changed dirty: those of the gradient, or all if something else wrote too."""
    engine, versions = watched.engine, watched._versions
    for table, weight, grad in updates:
        writes = weight._version - versions[table]
        versions[table] = weight._version
        if grad is None or writes != _writes_of_step(optimizer, grad):
            engine.mark_dirty(table)
        elif grad.is_sparse:
            engine.mark_dirty(table, describe(grad._indices()[0].cpu().contiguous()))
        elif isinstance(engine, DeviceEngine):
            engine.mark_dirty_nonzero(table, grad.contiguous())
        else:
            engine.mark_dirty_nonzero(table, describe(grad.contiguous()))


def _writes_of_step(optimizer: Optimizer, grad: Tensor) -> int:
    """How often a step that keeps other rows writes to a weight."""
    return 0 if type(optimizer) is torch.optim.SparseAdam and not grad._nnz() else 1


def group_of(optimizer: Optimizer, weight: Tensor) -> dict[str, Any] | None:
    """The group of `optimizer` that holds `weight`, or None."""
    for group in optimizer.param_groups:
        if any(parameter is weight for parameter in group["params"]):
            return group
    return None


def keeps_other_rows(optimizer: Optimizer, group: dict[str, Any], dtype: torch.dtype) -> bool:
    """Whether a step leaves every row, weight and state, alone whose gradient is zero or absent.

    False for what isn't known for certain: subclasses, unknown classes, fused kernels, and numbers (`eps`
    that rounds to 0 in `dtype`, a learning rate of inf) with which 0 * inf or 0 / 0 would reach every row.
    """
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam):
        return False
    still = not group.get("momentum") and not group.get("weight_decay") and not group.get("fused")
    return (
        still
        and math.isfinite(float(group["lr"]))
        and float(group.get("eps", 1.0)) >= torch.finfo(dtype).tiny
    )


def _updates(
    optimizer: Optimizer, weights: Sequence[tuple[int, Tensor]], seen: dict[int, tuple[Tensor, int]]
) -> list[Update]:
    if not weights or _skipped_by_amp(optimizer):
        return []
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    updates = []
    for table, weight in weights:
        group, grad = groups.get(id(weight)), weight.grad
        if group is None or (grad is None and table not in seen):
            continue
        known = _read_by_step(grad, seen.get(table))
        exact = known is not None and keeps_other_rows(optimizer, group, weight.dtype)
        updates.append(Update(table, weight, known if exact else None))
    return updates


def _read_by_step(grad: Tensor | None, seen: tuple[Tensor, int] | None) -> Tensor | None:
    """The gradient that the step read, None if closures or hooks replaced, dropped or rewrote it."""
    if seen is None or grad is not seen[0] or seen[0]._version != seen[1]:
        return None
    return seen[0] if seen[0].layout in (torch.strided, torch.sparse_coo) else None


def _skipped_by_amp(optimizer: Optimizer) -> bool:
    """Whether `torch.amp.GradScaler` told a fused optimizer to leave everything as it is."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
