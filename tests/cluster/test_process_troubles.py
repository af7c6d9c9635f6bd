"""Shards that hang, and that die while they recover."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from cluster.cluster_jobs import TIMEOUT, spec_of
from cluster.cluster_trainers import train
from cluster.process_clusters import Cluster, check_rows, local_of

from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.messages import CutMissed
from cpr_native.cluster.processes import ProcessDirectory
from cpr_native.errors import SchemaMismatchError
from cpr_native.store import CheckpointStore


def test_a_frozen_shard_costs_a_save_and_no_more(cluster: Cluster) -> None:
    train(cluster.trainers, 1, 2)
    cluster.save(2)
    train(cluster.trainers, 3, 3)
    cluster.coordinator._timeout = 2.0
    pid = cluster.directory.life(1).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CutMissed, match=r"was not promised: shard 1: TimeoutError"):
            cluster.save(3)
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.coordinator._timeout = TIMEOUT
    train(cluster.trainers, 4, 4)
    assert [point.step for point in CheckpointStore(cluster.spec.store).points()] == [2]
    assert cluster.save(4).step == 4
    cluster.coordinator.rollback(cluster.handles, generation=2)
    for shard in (0, 1):
        check_rows(cluster, shard, local_of(cluster.spec, [1, 2, 3, 4]))


def test_a_shard_that_dies_while_it_recovers_is_started_again(cluster: Cluster) -> None:
    train(cluster.trainers, 1, 2)
    cluster.save(2)
    first = cluster.directory.life(1).pid
    killed: list[int] = []

    def hunt() -> None:
        limit = time.monotonic() + TIMEOUT
        while not killed and time.monotonic() < limit:
            for child in multiprocessing.active_children():
                if child.name == "shard-1" and child.pid not in (None, first):
                    assert child.pid is not None
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)
            time.sleep(0.001)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    os.kill(first, signal.SIGKILL)
    train(cluster.trainers, 3, 4)
    hunter.join(TIMEOUT)
    assert len(killed) == 1
    assert cluster.directory.life(1).pid not in (first, killed[0])
    assert cluster.trainers[0].lost == [(1, 0)]
    check_rows(cluster, 1, local_of(cluster.spec, [1, 2, 3, 4]))


def test_a_shard_that_can_not_recover_says_why(tmp_path: Path) -> None:
    directory = ProcessDirectory(spec_of(tmp_path, shards=2))
    directory.spec = spec_of(tmp_path, shards=2, run_id="another")
    after = directory.life(0).incarnation
    directory.life(0).kill()
    with pytest.raises(ShardLost, match=r"no life after incarnation 1: .*run id"):
        directory.reconnect(0, TIMEOUT, after=after)
    with pytest.raises(SchemaMismatchError, match="run id"):
        directory.start(0)
    directory.close()
    with pytest.raises(SchemaMismatchError, match="run id"):
        ProcessDirectory(spec_of(tmp_path, shards=2, run_id="another"))
