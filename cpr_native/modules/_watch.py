"""Which rows torch's own optimizers change; versions can't tell (fused Adam doesn't even bump them)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule


def watch_optimizers(module: EngineModule) -> None:
    """Mark the rows that `step()` of any torch optimizer changes in `module`, as long as the module lives."""
    reference = weakref.ref(module)

    def after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        watched = reference()
        if watched is not None:
            _mark_changed(watched, optimizer)

    handle = register_optimizer_step_post_hook(after_step)
    weakref.finalize(module, handle.remove)


def _mark_changed(module: EngineModule, optimizer: Optimizer) -> None:
    for table, weight in enumerate(module._weights()):
        group = _group_of(optimizer, weight)
        if group is None or weight.grad is None:
            continue
        # One version more than remembered: the optimizer's write and no other.
        if _keeps_other_rows(optimizer, group) and weight._version == module._versions[table] + 1:
            module._mark(table, _rows_of(weight.grad))
            module._versions[table] = weight._version
        else:
            module._mark(table, None)


def _group_of(optimizer: Optimizer, weight: Tensor) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        if any(parameter is weight for parameter in group["params"]):
            return group
    return None


def _keeps_other_rows(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether a step leaves every row alone whose gradient is zero or absent."""
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam):
        return False
    still = not group.get("momentum") and not group.get("weight_decay") and not group.get("fused")
    return still and float(group.get("eps", 1.0)) > 0.0


def _rows_of(grad: Tensor) -> Tensor:
    if grad.is_sparse:
        return grad._indices()[0]
    return grad.ne(0).any(dim=1).nonzero().reshape(-1)
