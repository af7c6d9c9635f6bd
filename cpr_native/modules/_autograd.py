"""The one entry of all modules to autograd: a node whose backward updates rows, gives gradients, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class LookupCall(Protocol):
    """One training forward, as its backward sees it. Gradients [bags, output dim] are contiguous."""

    def check(self) -> None:
        """Raise RuntimeError after the update: it can be done once."""
        ...

    def sample_grad(self, grad: Tensor) -> Tensor:
        """Return the gradient of the per-sample weights, one per id, with the rows of the forward."""
        ...

    def update(self, grad: Tensor) -> None:
        """Do one step of the fused optimizer, or hand it on; at most once."""
        ...

    def weight_grads(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Return the gradients of the weights that `record` was given, None for those not `wanted`."""
        ...


def record(
    call: LookupCall,
    pool: Callable[[Tensor | None], Tensor],
    hook: Tensor | None,
    per_sample_weights: Tensor | None,
    weights: Sequence[Tensor] = (),
) -> Tensor:
    """Return the output of `pool(per_sample_weights)`, new memory, and have backward come to `call`.

    `hook`: a scalar that requires a gradient and never gets one; backward updates if it reaches it. `weights`
    and `per_sample_weights` get gradients where autograd asks for them.
    """
    return cast(Tensor, _Lookup.apply(call, pool, hook, per_sample_weights, *weights))  # type: ignore[no-untyped-call]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: LookupCall,
        pool: Callable[[Tensor | None], Tensor],
        hook: Tensor | None,
        per_sample_weights: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        out = pool(per_sample_weights)
        ctx.call = call
        given = (None, None, hook, per_sample_weights, *weights)
        ctx.tensors = [at for at, tensor in enumerate(given) if tensor is not None]
        # A saved tensor gives torch's own error for a second backward without retain_graph.
        ctx.save_for_backward(out.new_empty(0))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.needs_input_grad[2] and torch.is_grad_enabled():
            raise RuntimeError(
                "a fused optimizer step has no second derivative: backward with create_graph=True"
            )
        return _gradients(ctx, grad)


@once_differentiable
def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    call: LookupCall = ctx.call
    _ = ctx.saved_tensors
    call.check()
    _, _, steps, samples, *tables = _wanted(ctx)
    grad = grad.contiguous()
    # Before the update: it reads the rows of the forward.
    sample_grad = call.sample_grad(grad) if samples else None
    if steps:
        call.update(grad)
    return (None, None, None, sample_grad, *call.weight_grads(grad, tables))


def _wanted(ctx: Any) -> list[bool]:
    """Which inputs this backward is to give a gradient: `torch.autograd.grad` may name some of them only."""
    wanted = list(ctx.needs_input_grad)
    if sum(wanted) > 1:
        for at, (node, _) in zip(ctx.tensors, ctx.next_functions, strict=True):
            wanted[at] = wanted[at] and _executes(node)
    return wanted


def _executes(node: Any) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # So it says of a leaf that `torch.autograd.grad` was asked for.
        return True
