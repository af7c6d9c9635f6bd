"""A training job with its manager over a run on Ray."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from ray_lab import Lab
from sharded.sharded_jobs import spec_of
from sharded.test_manager import TABLES, Trainer

from cpr_native.policy import Policy
from cpr_native.ray import RayHandle, RayShards


class Shards(RayShards):
    """The shards of a launched run, with its spec."""

    def __init__(self, lab: Lab, store: Path) -> None:
        self.spec = spec_of(store, TABLES)
        run = lab.launch(self.spec)
        super().__init__(run.settings, self.spec.shards)

    def pids(self) -> list[int]:
        handles = [self.reconnect(shard, 60.0, after=0) for shard in range(self.shards)]
        assert all(isinstance(handle, RayHandle) for handle in handles)
        return [handle.life.pid for handle in handles]

    def kill(self, shard: int) -> None:
        os.kill(self.pids()[shard], signal.SIGKILL)


def trainer_of(lab: Lab, policy: Policy) -> tuple[Any, Shards]:
    """Return a trainer with its manager over three shards."""
    shards = Shards(lab, lab.store())
    directory: Any = shards
    return Trainer(directory, policy), shards
