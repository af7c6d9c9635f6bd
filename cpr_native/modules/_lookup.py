"""Lookups of the modules of this process: with a backward to come, without, or traced."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cpr_native.modules import _call, _compile
from cpr_native.modules._autograd import record
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
            pools = partial(call.forward, request, trains=trains)
            return record(call, pools, hook, per_sample_weights, inputs)
    return pool(module, request, per_sample_weights)


def renormalise(module: EngineModule, request: Request, max_norm: float, norm_type: float) -> None:
    """Scale the rows that the ids name, padding included, down to a `norm_type`-norm of `max_norm`, in place.

    They become dirty, in eval() and under no_grad too.
    """
    if torch.compiler.is_compiling():
        _compile.renormalise(module, request, max_norm, norm_type)
    else:
        _call.renormalise(module, request, max_norm, norm_type)
