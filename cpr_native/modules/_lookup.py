"""The one autograd function of all modules: lookup forward, fused update or gradient backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpr_native._native import Batch
from cpr_native._tensor import describe

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule

F = TypeVar("F", bound=Callable[..., Tensor])


def run_eagerly(forward: F) -> F:
    """Keep `torch.compile` out of `forward`: its graph breaks there."""
    return cast(F, torch.compiler.disable(forward))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Request:
    """Contiguous CPU ids of one lookup: `bags` rows of output, by offsets or by `ids_per_bag` ids each."""

    ids: Tensor
    offsets: Tensor | None
    bags: int
    ids_per_bag: int = 0


def look_up(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None, *, sparse: bool
) -> Tensor:
    """Pool the request's bags: [bags, output dim], float32; autograd hears of it if a backward has to come.

    `sparse`: the layout of the gradient that torch's optimizers get (unused with a fused optimizer).
    """
    weights = module._synced()
    if torch.is_grad_enabled():
        frozen = [table for table, weight in enumerate(weights) if not weight.requires_grad]
        trains = len(frozen) < len(weights) and (module.training or not module.fused)
        if trains or (per_sample_weights is not None and per_sample_weights.requires_grad):
            token = module._token if trains and module.fused else None
            inputs = () if module.fused else weights
            call = _Call(module, request, tuple(frozen), sparse)
            out = _Lookup.apply(call, token, per_sample_weights, *inputs)  # type: ignore[no-untyped-call]
            return cast(Tensor, out)
    return _pool(module, request, per_sample_weights, keep=False)[0]


@dataclass(frozen=True)
class _Call:
    module: EngineModule
    request: Request
    frozen: tuple[int, ...]
    sparse: bool


def _pool(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None, *, keep: bool
) -> tuple[Tensor, Batch | None]:
    engine = module.engine
    out = torch.empty((request.bags, engine.output_dim), dtype=torch.float32, device="cpu")
    batch = engine.lookup(
        describe(request.ids),
        None if request.offsets is None else describe(request.offsets),
        None if per_sample_weights is None else describe(per_sample_weights.detach()),
        describe(out),
        threads=torch.get_num_threads(),
        keep=keep,
        ids_per_bag=request.ids_per_bag,
    )
    return out, batch


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: _Call, token: Tensor | None, per_sample_weights: Tensor | None, *weights: Tensor
    ) -> Tensor:
        out, ctx.batch = _pool(call.module, call.request, per_sample_weights, keep=True)
        ctx.call = call
        ctx.after_update = None
        if call.module._observer is not None and (token is not None or any(ctx.needs_input_grad[3:])):
            ctx.after_update = call.module._observer(call.request, call.frozen)
        # Saved tensors give torch's own errors: a second backward without retain_graph and, where the
        # backward reads the weights, weights that changed since.
        ctx.save_for_backward(out.new_empty(0), *(call.module._weights() if ctx.needs_input_grad[2] else ()))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.needs_input_grad[1] and torch.is_grad_enabled():
            raise RuntimeError(
                "a fused optimizer step has no second derivative: backward with create_graph=True"
            )
        return _gradients(ctx, grad)


@once_differentiable
def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    call, batch = ctx.call, ctx.batch
    _ = ctx.saved_tensors
    if batch is None:
        raise RuntimeError(
            "second backward through one lookup: its fused optimizer step has been done already"
        )
    module, engine, threads = call.module, call.module.engine, torch.get_num_threads()
    fused, needed = ctx.needs_input_grad[1], ctx.needs_input_grad[3:]
    if fused:
        _check_rank_local(module)
    weights = module._synced()
    grad = grad.contiguous()
    sample_grad = None
    if ctx.needs_input_grad[2]:
        sample_grad = torch.empty(call.request.ids.shape, dtype=torch.float32, device="cpu")
        engine.per_sample_weight_grad(batch, describe(grad), describe(sample_grad), threads=threads)
    if fused:
        tracked = _update(call, batch, grad, weights)
        ctx.batch = None
    else:
        tracked = any(needed)
    weight_grads = [_weight_grad(call, batch, grad, t) if needs else None for t, needs in enumerate(needed)]
    if tracked and ctx.after_update is not None:
        ctx.after_update()
    return (None, None, sample_grad, *weight_grads)


def _update(call: _Call, batch: Batch, grad: Tensor, weights: Sequence[Tensor]) -> bool:
    module = call.module
    updated = module.engine.update(
        batch,
        describe(grad),
        threads=torch.get_num_threads(),
        grad_scale=module.grad_scale,
        frozen=call.frozen,
    )
    if updated:
        module._written(weights, call.frozen)
    return updated


def _weight_grad(call: _Call, batch: Batch, grad: Tensor, table: int) -> Tensor:
    config = call.module._plan.tables[table]
    shape = (config.num_embeddings, config.embedding_dim)
    row_ids, sums = call.module.engine.gradient(
        batch, describe(grad), table=table, threads=torch.get_num_threads()
    )
    rows, values = torch.from_numpy(row_ids), torch.from_numpy(sums)
    if call.sparse:
        return torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, shape, is_coalesced=True, check_invariants=False
        )
    return torch.zeros(shape, dtype=torch.float32, device="cpu").index_copy_(0, rows, values)


def _check_rank_local(module: EngineModule) -> None:
    distributed = torch.distributed
    if module.rank_local or not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() > 1:
        raise RuntimeError(
            "a fused optimizer updates the tables of this rank alone, and torch.distributed has "
            f"{distributed.get_world_size()} ranks: pass rank_local=True if the tables are meant to differ"
        )
