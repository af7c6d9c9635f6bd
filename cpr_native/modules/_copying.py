"""Copies and pickles of a module: what they hold, and their engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from cpr_native.modules._carry import put
from cpr_native.modules._following import carried, engine_over, move_in
from cpr_native.modules._places import placed, portable

if TYPE_CHECKING:
    from cpr_native.modules._base import EngineModule

# Attributes that every module has its own of.
_OWN = frozenset(
    (
        *("_engine", "_hook", "_token", "_observer", "_optimizer", "_compiled_call_impl"),
        *("_describe", "_device", "_weight_device"),
    )
)


def state_of(module: EngineModule) -> dict[str, Any]:
    """What `restore` takes: the attributes, and copies of what the engine has beside the weights."""
    state = {key: value for key, value in module.__dict__.items() if key not in _OWN}
    copied = (module.optimizer_scalars(), module._engine.max_stall_seconds, carried(module))
    return {**state, "_plan": portable(module._plan), "_copied": copied}


def restore(module: EngineModule, state: dict[str, Any]) -> None:
    """Make `module` from what `state_of` returned, with an engine where its weights are now."""
    scalars, max_stall_seconds, kept = state.pop("_copied")
    nn.Module.__setstate__(module, state)  # type: ignore[no-untyped-call]
    weights = module._weights()
    plan = module._plan = placed(module._plan, weights)
    if plan.place is None or plan.host_memory:
        module._start(plan.build())
        move_in(module._engine, plan, weights)
    else:
        module._start(engine_over(plan, weights))
    module.load_optimizer_scalars(scalars)
    module._engine.max_stall_seconds = max_stall_seconds
    for table, weight in enumerate(weights):
        put(module._engine, table, weight, kept[table])
    module._adopt()
