"""`ShardedFusedOptimizer`: the shards' optimizer as torch's schedulers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cpr_native.modules._handle import FusedHandle, group_of
from cpr_native.optim import FusedOptimizer


class ShardedFusedOptimizer(FusedHandle):
    """The hyperparameters of the optimizer that shards apply to each step's gradients.

    `param_groups` has one group without parameters and torch's keys: `lr`, `weight_decay`, and `eps` and
    `betas` where the optimizer has them. They are read when a backward sends its gradients, so that whatever
    wrote them (a scheduler, an assignment) is in force at that step, in every shard. In a group of trainers
    each rank writes the same; those of rank 0 count. `step()` and `zero_grad()` do nothing. The state of rows
    is theirs: `state_dict()` has the group only.
    """

    def __init__(self, settings: FusedOptimizer, send: Callable[[Mapping[str, float]], None]) -> None:
        self._send = send
        super().__init__(settings)

    def _put(self, changed: Mapping[str, float]) -> None:
        self._send(changed)

    def follow(self, settings: FusedOptimizer) -> None:
        """Take what is in force in the shards, after they were brought to another step."""
        self.param_groups[0].update(group_of(settings))
        self._settings, self._values = settings, self._read(self.param_groups[0])
