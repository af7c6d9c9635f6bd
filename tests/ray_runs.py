"""Small runs on Ray: trained step by step, with what every shard must hold after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cluster.cluster_jobs import LocalTables, spec_of
from cluster.cluster_trainers import Trainer, train
from ray_lab import SECONDS, Lab

from cpr_native.cluster.messages import Committed, CutRequest
from cpr_native.ray import RayCluster, RayHandle

TABLES = (("a", 61, 8), ("b", 3, 8), ("c", 40, 4))


class Run:
    """A launched run with one trainer."""

    def __init__(
        self, lab: Lab, *, shards: int = 2, tables: Any = TABLES, settings: Any = None, **spec: Any
    ) -> None:
        self.lab = lab
        self.spec = spec_of(lab.store(), shards=shards, tables=tables, **spec)
        self.cluster: RayCluster = lab.launch(self.spec, **(settings or {}))
        self.trainer = Trainer(self.cluster.shards, self.spec)
        self.begun = self.pids()
        self._cuts = 0

    def handle(self, shard: int) -> RayHandle:
        found = self.cluster.shards.handle(shard)
        assert isinstance(found, RayHandle)
        return found

    def pid(self, shard: int) -> int:
        return self.handle(shard).life.pid

    def pids(self) -> list[int]:
        """Return the processes of all shards, as they say themselves."""
        return [self.handle(shard).call("status").result(SECONDS).pid for shard in range(self.spec.shards)]

    def train(self, first: int, last: int) -> None:
        train([self.trainer], first, last)

    def moved_at(self, step: int) -> int | None:
        """Train one step; returns it if shard 0 then runs in another process than at first."""
        self.train(step, step)
        return step if self.handle(0).incarnation > 1 else None

    def cut(self, step: int) -> list[int]:
        """Ask every shard for a base after `step`; returns the cuts' numbers, which `committed` takes."""
        self._cuts += 1
        for shard in range(self.spec.shards):
            handle = self.handle(shard)
            request = CutRequest(
                number=self._cuts, generation=1, incarnation=handle.incarnation, step=step, kind="base"
            )
            handle.call("cut", request).result(SECONDS)
        return [self._cuts] * self.spec.shards

    def committed(self, number: int) -> list[Committed]:
        asked = [self.handle(shard).call("committed", number, SECONDS) for shard in range(self.spec.shards)]
        return [each.result(SECONDS) for each in asked]

    def save(self, step: int) -> None:
        self.committed(self.cut(step)[0])

    def recovery(self, shard: int) -> Any:
        return self.handle(shard).call("status").result(SECONDS).recovery

    def check(self, shard: int, steps: Sequence[tuple[int, int]]) -> None:
        """Assert that a shard holds, bit for bit, what training the steps `steps` (ranges) alone gives."""
        local = LocalTables(self.spec)
        for first, last in steps:
            for step in range(first, last + 1):
                local.step(step)
        for table in self.spec.tables:
            begin, end = self.spec.row_range(table.name, shard)
            got = self.handle(shard).call("rows", table.name).result(SECONDS)
            if begin == end:
                continue
            expected = local.state(table.name)
            for key in ("weight", "state"):
                assert np.array_equal(got[key], expected[key][begin:end]), (table.name, key)
