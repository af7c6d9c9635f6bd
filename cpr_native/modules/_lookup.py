"""The one entry of all modules to autograd: lookup forward, fused update or gradient backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpr_native.modules import _call, _compile
from cpr_native.modules._call import Call, Request, pool

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule


def look_up(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None, *, sparse: bool
) -> Tensor:
    """Pool the request's bags, [bags, output dim]; autograd hears of it if a backward has to come.

    Output and per-sample weights are float32, or float64 for float64 tables.

    `sparse`: the layout of the gradient that torch's optimizers get (unused with a fused optimizer).
    """
    if torch.compiler.is_compiling():
        return _compile.look_up(module, request, per_sample_weights, sparse=sparse)
    weights = module._synced()
    if torch.is_grad_enabled():
        frozen = [table for table, weight in enumerate(weights) if not weight.requires_grad]
        trains = len(frozen) < len(weights) and (module.training or not module._fused)
        if trains or (per_sample_weights is not None and per_sample_weights.requires_grad):
            hook = module._hook if trains and module._fused else None
            inputs = () if module._fused or not trains else weights
            call = Call(module, tuple(frozen), sparse)
            out = _Lookup.apply(call, request, hook, per_sample_weights, *inputs)  # type: ignore[no-untyped-call]
            return cast(Tensor, out)
    return pool(module, request, per_sample_weights)


def renormalise(module: EngineModule, request: Request, max_norm: float, norm_type: float) -> None:
    """Scale the rows that the ids name, padding included, down to a `norm_type`-norm of `max_norm`, in place.

    They become dirty, in eval() and under no_grad too.
    """
    if torch.compiler.is_compiling():
        _compile.renormalise(module, request, max_norm, norm_type)
    else:
        _call.renormalise(module, request, max_norm, norm_type)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        request: Request,
        hook: Tensor | None,
        per_sample_weights: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        out = call.forward(request, per_sample_weights, trains=hook is not None or bool(weights))
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
    call: Call = ctx.call
    _ = ctx.saved_tensors
    call.batch()
    _, _, steps, samples, *tables = _wanted(ctx)
    grad = grad.contiguous()
    # Before the update: it reads the rows of the forward.
    sample_grad = call.sample_grad(grad) if samples else None
    if steps:
        call.update(grad)
    weight_grads = [call.weight_grad(grad, table) if needs else None for table, needs in enumerate(tables)]
    if any(tables):
        call.tracked()
    return (None, None, None, sample_grad, *weight_grads)


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
