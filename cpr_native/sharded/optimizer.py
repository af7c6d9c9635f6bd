"""`ShardedFusedOptimizer`: the shards' optimizer as torch's schedulers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from cpr_native.optim import FusedOptimizer, native_scalars

_NAMES = ("lr", "betas", "eps", "weight_decay")


class ShardedFusedOptimizer(torch.optim.Optimizer):
    """The hyperparameters of the optimizer that shards apply to each step's gradients.

    `param_groups` has one group without parameters and torch's keys: `lr`, `weight_decay`, and `eps` and
    `betas` where the optimizer has them. They are read when a backward sends its gradients, so that whatever
    wrote them (a scheduler, an assignment) is in force at that step, in every shard. In a group of trainers
    each rank writes the same; those of rank 0 count. `step()` and `zero_grad()` do nothing. The state of rows
    is theirs: `state_dict()` has the group only.
    """

    _step_supports_amp_scaling = True

    def __init__(self, settings: FusedOptimizer, send: Callable[[Mapping[str, float]], None]) -> None:
        self._settings = settings
        self._sent = native_scalars(settings)
        self._send = send
        super().__init__([{"params": []}], {n: getattr(settings, n) for n in _NAMES if hasattr(settings, n)})

    @property
    def settings(self) -> FusedOptimizer:
        """The optimizer with the hyperparameters of the group; raises ValueError for one out of range."""
        group = self.param_groups[0]
        values: dict[str, Any] = {name: group[name] for name in self.defaults}
        for name in values:
            values[name] = tuple(map(float, values[name])) if name == "betas" else float(values[name])
        return replace(self._settings, **values)

    def push(self) -> None:
        """Send what the group has changed, to be in force from the next step on; raises ValueError."""
        scalars = native_scalars(self.settings)
        changed = {name: value for name, value in scalars.items() if value != self._sent[name]}
        if changed:
            self._send(changed)
            self._sent = scalars

    def follow(self, settings: FusedOptimizer) -> None:
        """Take what is in force in the shards, after they were brought to another step."""
        self._sent = native_scalars(settings)
        self.param_groups[0].update({name: getattr(settings, name) for name in self.defaults})

    def updated(self) -> None:
        """Note that a backward did a step: schedulers warn when theirs comes first."""
        self._opt_called = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do nothing: backward has sent the gradients. Returns what `closure` returns, if there is one."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise NotImplementedError: the tables share their hyperparameters."""
        if self.param_groups:
            raise NotImplementedError("the tables of a cluster share one parameter group")
        super().add_param_group(param_group)
