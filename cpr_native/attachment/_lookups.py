"""Counts lookups when their update has run: forward notes ids, backward claims them, the step takes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn


class Lookups:
    """The ids behind the gradient of one weight, until an optimizer's step has used it.

    Ids count once for each backward that reached the weight, as often as they were looked up. Those whose
    gradient was dropped (AMP skipped the step, `zero_grad()` without one) don't.
    """

    def __init__(self) -> None:
        self._arriving: dict[int, list[Tensor]] = {}
        self._pending: list[Tensor] = []
        self._grad: tuple[Tensor, int] | None = None

    def looked_up(self, weight: nn.Parameter, ids: Tensor, output: Tensor) -> None:
        """Note a forward that autograd recorded; `ids` [n] are nobody else's."""

        def arrived(_grad: Tensor) -> None:
            self._arrived(weight, ids)

        output.register_hook(arrived)  # type: ignore[no-untyped-call]

    def accumulated(self, weight: Tensor) -> None:
        """Take over the ids of the running backward: their gradient is in `weight.grad` now."""
        self._pending += self._arriving.pop(_backward(), [])
        grad = weight.grad
        self._grad = (grad, grad._version) if self._pending and grad is not None else None

    def take(self) -> Tensor | None:
        """The ids whose gradient a step has just used, [n], and forget them; None without any."""
        running = _backward()
        taken = self._pending + self._arriving.pop(running, [])
        self._pending, self._grad = [], None
        if running == _NO_BACKWARD:
            self._arriving.clear()
        if len(taken) > 1:
            return torch.cat(taken)
        return taken[0] if taken else None

    def _arrived(self, weight: Tensor, ids: Tensor) -> None:
        running = _backward()
        if running not in self._arriving and self._pending and self._was_dropped(weight.grad):
            self._pending, self._grad = [], None
        self._arriving.setdefault(running, []).append(ids)

    def _was_dropped(self, grad: Tensor | None) -> bool:
        if grad is None:
            return True
        if self._grad is not None and grad is self._grad[0] and grad._version == self._grad[1]:
            return False
        values = grad._values() if grad.is_sparse else grad
        return not bool(values.any())


_NO_BACKWARD = -1


def _backward() -> int:
    """The number of the backward pass that runs in this thread, -1 outside of one."""
    return int(torch._C._current_graph_task_id())


# Torch numbers its hooks from 0, in each process anew; a copied module must never give ours to another hook.
HOOK_ID = -0x637072


class ForwardHook:
    """The hook on a module; its copies, by deepcopy or pickle with their module, do nothing.

    `seen`: gets module, ids and output.
    """

    def __init__(self, seen: Callable[[nn.Module, Tensor, Any], None] | None = None) -> None:
        self._seen = seen

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Hand a finished forward on."""
        if self._seen is not None:
            self._seen(module, _looked_up(module, args, kwargs), output)

    def put_on(self, module: nn.Module) -> None:
        """Become the first hook of `module`."""
        hooks = cast("OrderedDict[int, Any]", module._forward_hooks)
        hooks[HOOK_ID] = self
        hooks.move_to_end(HOOK_ID, last=False)
        module._forward_hooks_with_kwargs[HOOK_ID] = True

    @staticmethod
    def take_off(module: nn.Module) -> None:
        """Remove the hook of `module`, if it has one."""
        module._forward_hooks.pop(HOOK_ID, None)
        module._forward_hooks_with_kwargs.pop(HOOK_ID, None)

    def __reduce__(self) -> tuple[type[ForwardHook], tuple[()]]:
        return ForwardHook, ()


def _looked_up(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The ids of a call, as the caller has them."""
    ids: Tensor = args[0] if args else kwargs["input"]
    if isinstance(module, nn.EmbeddingBag) and module.include_last_offset:
        offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
        if offsets is not None:
            return ids[: int(offsets[-1])]
    return ids


def without_padding(ids: Tensor, padding_idx: int | None) -> Tensor:
    """A copy of `ids`, [n], less those of the padding row."""
    flat = ids.detach().reshape(-1)
    return flat.clone() if padding_idx is None else flat[flat != padding_idx]
