"""The lookup under `torch.compile`: custom ops, so that it is part of the graph.

A graph keeps an op only if something that the graph returns or mutates depends on it. So the fused update
mutates a small tensor, the module's *token*, which the lookup reads: that also keeps the updates of one
module in order. The token says which module it belongs to, and each training forward puts a new one in its
place, since a graph refuses to mutate in backward what a later forward has saved. The lookup's second output,
the *ticket*, stands for the batch that waits for its backward, and lives as long as the graph that holds it.

Compile caches know an op by its name alone: the name must change with the autograd formula.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cpr_native.modules import _call
from cpr_native.modules._call import Call, Request, pool
from cpr_native.modules._memory import compute_dtype

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule

_modules: weakref.WeakValueDictionary[int, EngineModule] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_calls: dict[int, Call] = {}
_tickets = itertools.count()
_sites = itertools.count()


def new_token(module: EngineModule) -> Tensor:
    """A token for `module`: int64 [2], its number and the updates done with this token."""
    number = next(_numbers)
    _modules[number] = module
    return _token(number)


def _token(number: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([number, 0], dtype=torch.int64, device="cpu")


def _module(token: Tensor) -> EngineModule:
    return _modules[int(token[0])]


def _ticket(call: Call) -> Tensor:
    """A tensor int64 [1] that stands for `call` and whose memory keeps it alive."""
    number = next(_tickets)
    array = np.array([number], dtype=np.int64)
    _calls[number] = call
    weakref.finalize(array, _calls.pop, number)
    return torch.from_numpy(array)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _site() -> int:
    """A number for each lookup of a graph: two alike would become one otherwise, with one batch."""
    return next(_sites)


def look_up(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None, *, sparse: bool
) -> Tensor:
    """`_lookup.look_up` while it is traced."""
    weights = module._weights()
    padding_idx = -1 if request.padding_idx is None else request.padding_idx
    batch = (request.ids, request.offsets, per_sample_weights, request.bags, request.ids_per_bag, padding_idx)
    out = (module._output_dim, compute_dtype(weights[0].dtype))
    if torch.is_grad_enabled():
        frozen = [table for table, weight in enumerate(weights) if not weight.requires_grad]
        trains = len(frozen) < len(weights) and (module.training or not module._fused)
        if trains or (per_sample_weights is not None and per_sample_weights.requires_grad):
            left_out = " ".join(str(table) for table in frozen)
            inside = sparse or module._fused
            hook = module._hook if trains and inside else None
            inputs = [] if inside or not trains else weights
            pooled: Tensor = _lookup_kept(
                module._token, hook, inputs, *batch, *out, left_out, sparse, _site()
            )[0]
            return pooled
    pooled = _lookup_only(module._token, *batch, *out)
    return pooled


def renormalise(module: EngineModule, request: Request, max_norm: float, norm_type: float) -> None:
    """`_lookup.renormalise` while it is traced."""
    _renormalise(module._token, request.ids, request.offsets, max_norm, norm_type)


@torch.library.custom_op(
    "cpr_native::renormalise",
    mutates_args=("token",),
    schema="(Tensor(a!) token, Tensor ids, Tensor? offsets, float max_norm, float norm_type) -> ()",
)
def _renormalise(
    token: Tensor, ids: Tensor, offsets: Tensor | None, max_norm: float, norm_type: float
) -> None:
    request = Request(ids.contiguous(), None if offsets is None else offsets.contiguous(), 0)
    _call.renormalise(_module(token), request, max_norm, norm_type)


@_renormalise.register_fake
def _(token: Tensor, ids: Tensor, offsets: Tensor | None, max_norm: float, norm_type: float) -> None:
    return None


_BATCH = (
    "Tensor ids, Tensor? offsets, Tensor? per_sample_weights, SymInt bags, SymInt ids_per_bag, "
    "int padding_idx, int dim, ScalarType dtype"
)


@torch.library.custom_op(
    "cpr_native::lookup_only", mutates_args=(), schema=f"(Tensor token, {_BATCH}) -> Tensor"
)
def _lookup_only(token: Tensor, *batch: Any) -> Tensor:
    module = _module(token)
    module._synced()
    request, per_sample_weights = _request(*batch)
    return pool(module, request, per_sample_weights)


@_lookup_only.register_fake
def _(token: Tensor, *batch: Any) -> Tensor:
    return _fake_output(*batch)


@torch.library.custom_op(
    "cpr_native::lookup_kept",
    mutates_args=(),
    schema=f"(Tensor token, Tensor? hook, Tensor[] weights, {_BATCH}, str frozen, bool sparse, int site)"
    " -> (Tensor, Tensor)",
)
def _lookup_kept(
    token: Tensor, hook: Tensor | None, weights: list[Tensor], *rest: Any
) -> tuple[Tensor, Tensor]:
    *batch, frozen, sparse, _ = rest
    module = _module(token)
    module._synced()
    call = Call(module, tuple(int(table) for table in frozen.split()), sparse)
    request, per_sample_weights = _request(*batch)
    out = call.forward(request, per_sample_weights, trains=hook is not None or bool(weights))
    module._token = _token(int(token[0]))
    return out, _ticket(call)


@_lookup_kept.register_fake
def _(token: Tensor, _hook: Any, _weights: Any, *rest: Any) -> tuple[Tensor, Tensor]:
    *batch, _frozen, _sparse, _ = rest
    return _fake_output(*batch), token.new_empty(1)


def _request(
    ids: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    bags: int,
    ids_per_bag: int,
    padding_idx: int,
    _dim: int,
    _dtype: torch.dtype,
) -> tuple[Request, Tensor | None]:
    offsets = None if offsets is None else offsets.contiguous()
    weights = None if per_sample_weights is None else per_sample_weights.contiguous()
    padding = None if padding_idx < 0 else padding_idx
    return Request(ids.contiguous(), offsets, bags, ids_per_bag, padding), weights


def _fake_output(
    ids: Tensor,
    _offsets: Any,
    _weights: Any,
    bags: int,
    _each: Any,
    _padding: Any,
    dim: int,
    dtype: Any,
) -> Tensor:
    return ids.new_empty((bags, dim), dtype=dtype)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    token, hook, weights, ids, *_ = inputs
    # Not among the saved tensors: the updates of one graph mutate the token one after the other.
    ctx.token = token
    ctx.inside = hook is not None
    ctx.weights = [(*weight.shape, weight.dtype) for weight in weights]
    ctx.ids, ctx.rest = ids.shape[0], len(inputs) - 6
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, grad: Tensor, _ticket: Any) -> tuple[Any, ...]:
    (ticket,) = ctx.saved_tensors
    tables, samples = ctx.needs_input_grad[2], ctx.needs_input_grad[5]
    sample_grad = _sample_grad(ctx.token, ticket, grad, ctx.ids) if samples else None
    if ctx.inside:
        _update(ctx.token, ticket, grad)
    wanted = [table for table, needs in enumerate(tables or ()) if needs]
    weight_grads: list[Tensor | None] = [None] * len(ctx.weights)
    for table in wanted:
        weight_grads[table] = _weight_grad(ticket, grad, table, table == wanted[-1], *ctx.weights[table])
    return (None, None, weight_grads, None, None, sample_grad, *[None] * ctx.rest)


_lookup_kept.register_autograd(_backward, setup_context=_keep_for_backward)


@torch.library.custom_op(
    "cpr_native::update",
    mutates_args=("token",),
    schema="(Tensor(a!) token, Tensor ticket, Tensor grad) -> ()",
)
def _update(token: Tensor, ticket: Tensor, grad: Tensor) -> None:
    call, grad = _call_of(ticket), grad.contiguous()
    if call.module._fused:
        call.update(grad)
    else:
        _accumulate(call, grad)
    token[1] += 1


def _accumulate(call: Call, grad: Tensor) -> None:
    """Give the weights their sparse gradients as `backward` would; graphs can't add those up."""
    weights = call.module._synced()
    for table, weight in enumerate(weights):
        if weight.requires_grad:
            torch.autograd.backward(weight, call.sparse_gradient(grad, table))
    call.tracked()


@_update.register_fake
def _(token: Tensor, ticket: Tensor, grad: Tensor) -> None:
    return None


@torch.library.custom_op(
    "cpr_native::sample_grad",
    mutates_args=(),
    schema="(Tensor token, Tensor ticket, Tensor grad, SymInt ids) -> Tensor",
)
def _sample_grad(token: Tensor, ticket: Tensor, grad: Tensor, ids: int) -> Tensor:
    return _call_of(ticket).sample_grad(grad.contiguous())


@_sample_grad.register_fake
def _(token: Tensor, ticket: Tensor, grad: Tensor, ids: int) -> Tensor:
    return grad.new_empty(ids)


@torch.library.custom_op(
    "cpr_native::weight_grad",
    mutates_args=(),
    schema="(Tensor ticket, Tensor grad, int table, bool last, int rows, int dim, ScalarType dtype)"
    " -> Tensor",
)
def _weight_grad(ticket: Tensor, grad: Tensor, table: int, last: bool, *_like: Any) -> Tensor:
    call = _call_of(ticket)
    weight_grad = call.dense_gradient(grad.contiguous(), table)
    if last:
        call.tracked()
    return weight_grad


@_weight_grad.register_fake
def _(
    ticket: Tensor, grad: Tensor, table: int, last: bool, rows: int, dim: int, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty((rows, dim), dtype=dtype)


def _call_of(ticket: Tensor) -> Call:
    call = _calls.get(int(ticket[0]))
    if call is None:
        raise RuntimeError("backward of a compiled lookup whose batch has been freed already")
    return call
