"""Shards in processes of their own, for tests that kill them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cluster.cluster_jobs import TIMEOUT, LocalTables, spec_of
from cluster.cluster_trainers import DENSE, Trainer, cluster_state

from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.processes import ProcessDirectory
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.store import CheckpointStore


class Cluster:
    """Shards in processes, one trainer a rank, and the coordinator."""

    def __init__(self, path: Path, *, ranks: int = 1, **options: Any) -> None:
        self.spec: ClusterSpec = spec_of(path, shards=2, ranks=ranks, **options)
        self.coordinator = Coordinator(
            CheckpointStore(path),
            self.spec.schema,
            self.spec.placement,
            run_id=self.spec.run_id,
            timeout=TIMEOUT,
        )
        self.directory = ProcessDirectory(self.spec)
        self.trainers = [Trainer(self.directory, self.spec, rank=r, ranks=ranks) for r in range(ranks)]

    @property
    def handles(self) -> list[Any]:
        return [self.directory.handle(shard) for shard in range(2)]

    def save(self, step: int, **options: Any) -> Any:
        cut = self.coordinator.begin(self.handles, generation=1, step=step, kind="delta", **options)
        return self.coordinator.finish(cut, DENSE)

    def close(self) -> None:
        self.directory.close()
        self.coordinator.close()


def local_of(spec: ClusterSpec, steps: list[int], ranks: int = 1) -> LocalTables:
    local = LocalTables(spec)
    for step in steps:
        local.step(step, ranks)
    return local


def check_rows(cluster: Cluster, shard: int, local: LocalTables) -> None:
    """Assert that the rows of one shard are those of `local`; rows don't depend on each other."""
    for table in cluster.spec.tables:
        begin, end = cluster.spec.row_range(table.name, shard)
        got, expected = cluster_state(cluster.directory, cluster.spec, table.name), local.state(table.name)
        for key in ("weight", "state"):
            assert np.array_equal(got[key][begin:end], expected[key][begin:end]), (table.name, key)
