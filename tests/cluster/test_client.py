"""`ShardClients`: lookups and updates of one rank."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from cluster.client_jobs import Job, running, train_together
from cluster.cluster_jobs import TIMEOUT, LocalTables, batch_of, spec_of
from cluster.cluster_trainers import check_same, cluster_state

from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.messages import QueueFull, StepGap, WrongGeneration


@pytest.mark.parametrize("ranks", [1, 3])
def test_training_is_that_of_the_local_tables(tmp_path: Path, ranks: int) -> None:
    spec = spec_of(tmp_path, ranks=ranks)
    local = LocalTables(spec)
    with running(spec) as directory:
        jobs = [Job.of(directory, spec, rank=rank, ranks=ranks) for rank in range(ranks)]
        train_together(jobs, 6)
        for step in range(1, 7):
            local.step(step, ranks)
        for job in jobs:
            job.clients.settle(TIMEOUT)
            assert job.clients.kept == [0, 0, 0]
        check_same(directory, spec, local, ("weight", "state", "count", "dirty"))
        lookups = sum(len(ids) for step in range(1, 7) for ids in batch_of(spec, step, 0).values())
        assert jobs[0].clients.lookups.sum() == lookups


def test_without_resuming_the_loss_is_raised_and_the_next_generation_begins(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    local = LocalTables(spec)
    with running(spec) as directory:
        job = Job.of(directory, spec, resumes=False)
        job.train(3)
        job.clients.settle(TIMEOUT)
        directory.kill(2)
        with pytest.raises(ShardLost):
            job.train(1)
        with pytest.raises(ShardLost):
            job.clients.call(2, "status")
        for shard in range(3):
            handle = directory.handle(shard)
            handle.call("begin_generation", 2, handle.incarnation, 3, 1).result(TIMEOUT)
        other = Job.of(directory, spec)
        with pytest.raises(WrongGeneration):
            other.train(1)
        job.clients.begin(2, 3)
        assert (job.clients.generation, job.clients.step, job.clients.kept) == (2, 4, [0, 0, 0])
        job.train(1)
        job.clients.settle(TIMEOUT)
        for step in range(1, 5):
            local.step(step)
        begin, end = spec.row_range("a", 0)
        got, expected = cluster_state(directory, spec, "a")["weight"], local.state("a")["weight"]
        np.testing.assert_array_equal(got[begin:end], expected[begin:end])


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """Rank 0 may run three steps ahead of rank 1, of which shards take only two."""
    spec = spec_of(tmp_path, ranks=2, staleness=5, max_queued=2)
    with running(spec) as directory:
        jobs = [Job.of(directory, spec, rank=rank, ranks=2, window=8) for rank in range(2)]
        jobs[0].train(3)
        assert jobs[0].clients.kept == [3, 3, 3]
        failed: list[BaseException] = []

        def settle() -> None:
            try:
                jobs[0].clients.settle(TIMEOUT)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=settle)
        thread.start()
        jobs[1].train(3)
        jobs[1].clients.settle(TIMEOUT)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        assert failed == []
        assert jobs[0].clients.kept == [0, 0, 0]
        status = jobs[0].clients.call(0, "status")
        assert status.watermarks == (3, 3)


def test_a_queue_that_stays_full_is_reported(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ranks=2, staleness=5, max_queued=1)
    with running(spec) as directory:
        clients = ShardClients(directory, rank=0, ranks=2, timeout=3.0, patience=3.0, window=1)
        job = Job(directory, spec, clients)
        job.train(1)
        with pytest.raises(QueueFull, match="updates wait for step 1 of ranks"):
            job.train(1)
        with pytest.raises((TimeoutError, QueueFull)):
            clients.settle(0.1)


def test_a_refused_hyperparameter_is_raised_by_a_later_call(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with running(spec) as directory:
        job = Job.of(directory, spec)
        job.clients.set_scalars({"momentum": 0.5})
        with pytest.raises(ValueError, match="momentum"):
            job.train(1)


def test_refusals_reach_the_caller(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with running(spec) as directory:
        job = Job.of(directory, spec, applied=3, window=1)
        ids, times, _ = zip(*job.route(4), strict=True)
        zeros = [np.zeros(each.size(spec.dims), np.float32) for each in ids]
        with pytest.raises(StepGap, match="expected the update of step 1 next, got step 4"):
            job.clients.update(ids, zeros, times)
        for bad in ({"rank": 1}, {"rank": -1}, {"window": 0}):
            with pytest.raises(ValueError, match=r"rank|window"):
                ShardClients(directory, **bad)
