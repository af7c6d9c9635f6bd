"""A keeper outlives the shard's process, and nobody takes it for that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster.cluster_jobs import LocalTables
from cluster.cluster_trainers import check_same, train
from cluster.process_clusters import Cluster

from cpr_native.cluster.shared_books import KEEPER, free_memory


def test_the_end_of_a_shard_with_a_keeper_is_seen(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, shared=KEEPER, run_id=f"keepers-{os.getpid()}")
    try:
        train(cluster.trainers, 1, 3)
        os.kill(cluster.directory.life(1).pid, signal.SIGKILL)
        train(cluster.trainers, 4, 5)
        assert cluster.directory.life(1).started(0).source == "memory"
        assert cluster.trainers[0].lost == [(1, 0)]
        local = LocalTables(cluster.spec)
        for step in range(1, 6):
            local.step(step)
        check_same(cluster.directory, cluster.spec, local)
    finally:
        cluster.close()
        assert [free_memory(cluster.spec, shard) for shard in range(2)] == [True, True]
