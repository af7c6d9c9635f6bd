"""What becomes of an engine whose module's parameters were written, or lie elsewhere than before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cpr_native.modules._carry import Carried, put, take
from cpr_native.modules._memory import as_tensor, data_type_of, torch_dtype
from cpr_native.modules._places import check_shape, check_weight, placed
from cpr_native.modules._plan import Engine, EnginePlan

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule


def follow(module: EngineModule, weights: Sequence[Tensor]) -> None:
    """Bind the weights that moved, mark those that somebody wrote to; makes an engine if that asks for one.

    Raises what `check_weight` and `placed` raise, RuntimeError for a move under a RecoveryManager.
    """
    plan = placed(module._plan, weights)
    elsewhere = plan is not module._plan
    for config, weight in zip(plan.tables, weights, strict=True):
        check_shape(f"table {config.name!r}: weight", config, weight)
    kinds = [torch_dtype(config.data_type) for config in plan.tables]
    moved = [weight.data_ptr() for weight in weights] != module._addresses
    if elsewhere or (moved and (plan.host_memory or [weight.dtype for weight in weights] != kinds)):
        rebuild(module, plan)
        return
    for table, weight in enumerate(weights):
        if weight.data_ptr() != module._addresses[table]:
            check_weight(plan, table, weight)
            module._engine.bind_weight(table, module._describe(weight), weight.detach())
            module._addresses[table], module._versions[table] = weight.data_ptr(), weight._version
        elif weight._version != module._versions[table]:
            module._engine.mark_dirty(table)
            module._versions[table] = weight._version


def carried(module: EngineModule) -> list[Carried]:
    """What the rows of every table have beside their weights; copies."""
    trackers = enumerate(module._plan.trackers)
    return [take(module._engine, table, drift=tracked.drift) for table, tracked in trackers]


def rebuild(module: EngineModule, plan: EnginePlan) -> None:
    """Make an engine of `plan` for the weights, whose dtypes may be others; state, trackers and scalars stay,
    all rows become dirty.
    """
    if module._observer is not None:
        raise RuntimeError(
            "the weights' dtype or device changed under a RecoveryManager: change it before the manager is "
            "made"
        )
    if plan.place is not None and module._engine.region is not None:
        raise ValueError(
            f"shared memory: expected tables that stay on the CPU, got weights on {plan.place.torch_device}"
        )
    weights, fused = module._weights(), module._fused
    tables = [
        replace(config, data_type=data_type_of(f"table {config.name!r}: weight", weight.dtype, fused=fused))
        for config, weight in zip(plan.tables, weights, strict=True)
    ]
    plan = replace(plan, tables=tuple(tables))
    kept, scalars = carried(module), module.optimizer_scalars()
    engine = engine_over(plan, weights)
    engine.max_stall_seconds = module._engine.max_stall_seconds
    for table, weight in enumerate(weights):
        put(engine, table, weight, kept[table])
        engine.mark_dirty(table)
    module._plan = plan
    module._use(engine)
    if module._optimizer is not None:
        module._optimizer.rebind(engine)
    module.load_optimizer_scalars(scalars)
    module._adopt()


def engine_over(plan: EnginePlan, weights: Sequence[nn.Parameter]) -> Engine:
    """An engine whose rows are the weights: in their memory, or with `host_memory` they in its own."""
    if plan.host_memory:
        engine = plan.build()
        move_in(engine, plan, weights)
        return engine
    for table, weight in enumerate(weights):
        check_weight(plan, table, weight)
    return plan.build(weights=[weight.detach() for weight in weights])


def move_in(engine: Engine, plan: EnginePlan, weights: Sequence[nn.Parameter]) -> None:
    """Copy the weights to the engine's own memory, which becomes theirs."""
    with torch.inference_mode(False):
        for table, weight in enumerate(weights):
            rows = as_tensor(engine.weight(table), plan.tables[table].data_type)
            rows.copy_(weight.detach())
            weight.data = rows
