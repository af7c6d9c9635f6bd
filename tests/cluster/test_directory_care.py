"""What keeps a cluster's directory small, and a shard that moves without losing anything."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from cluster.cluster_jobs import TIMEOUT, LocalTables, spec_of
from cluster.cluster_trainers import Job, Trainer, check_same, train

from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.messages import CutMissed, CutRequest, Tag
from cpr_native.cluster.server import ShardServer
from cpr_native.policy import Mfu
from cpr_native.store import CheckpointStore, verify


def local_of(job: Job, steps: int) -> LocalTables:
    local = LocalTables(job.spec)
    for step in range(1, steps + 1):
        local.step(step, len(job.trainers))
    return local


def segments(path: Path) -> int:
    return len(list(path.rglob("*.safetensors")))


def test_retention_keeps_points_and_the_newest_rows(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.coordinator.close()
    store = CheckpointStore(tmp_path)
    job.coordinator = Coordinator(store, job.spec.schema, job.spec.placement, keep=2)
    sizes = []
    for step in range(1, 13):
        train(job.trainers, step, step)
        save = job.save(step, "base" if step % 3 == 0 else "delta")
        assert save.retention_error is None
        sizes.append(segments(tmp_path))
    assert [point.step for point in store.points()] == [12, 11]
    assert sizes[-1] <= sizes[5]
    train(job.trainers, 13, 13)
    job.save(13, "priority", policy=Mfu(fraction=0.5), save=1)
    job.directory.kill(1)
    train(job.trainers, 14, 14)
    job.coordinator.rollback(job.handles, generation=2)
    check_same(job.directory, job.spec, local_of(job, 12))
    job.close()
    assert verify(tmp_path) == []


def test_chains_are_folded_beside_training(tmp_path: Path) -> None:
    job = Job(tmp_path, compact=2)
    for step in range(1, 9):
        train(job.trainers, step, step)
        job.save(step)
    for shard in range(job.spec.shards):
        saves = job.directory.life(shard).server._saves
        saves._housekeeping.wait()
        assert saves.folding_error is None
    plans = [CheckpointStore(tmp_path).shard_plan(shard) for shard in range(job.spec.shards)]
    assert all(len(plan.chains[0].commits) <= 4 for plan in plans)
    job.directory.kill(2)  # its rows and watermarks come from what was folded
    train(job.trainers, 9, 9)
    assert job.trainers[0].lost == [(2, 0)]
    check_same(job.directory, job.spec, local_of(job, 9))
    job.coordinator.rollback(job.handles, generation=2)
    check_same(job.directory, job.spec, local_of(job, 8))
    job.close()


def test_a_drained_shard_moves_and_nothing_is_lost(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    first, second = job.trainers
    train(job.trainers, 1, 3)
    job.save(3)
    train(job.trainers, 4, 5)
    rows = [trainer.look_up(6) for trainer in job.trainers]
    first.send(6, rows[0])
    done = job.handles[1].call("drain", TIMEOUT).result(TIMEOUT)
    assert (done.kind, done.step) == ("delta", 5)
    second.send(6, rows[1])  # taken, and not applied there
    assert job.handles[1].call("status").result(TIMEOUT).watermarks == (5, 5)
    assert job.handles[0].call("status").result(TIMEOUT).watermarks == (6, 6)
    again = job.handles[1].call("drain", TIMEOUT).result(TIMEOUT)
    assert again.step == 5
    job.directory.kill(1)
    for trainer in job.trainers:
        trainer.reconnect(1)
    train(job.trainers, 7, 8)
    assert {lost for trainer in job.trainers for _, lost in trainer.lost} == {0}
    check_same(job.directory, job.spec, local_of(job, 8))
    assert job.save(8).kind == "delta"
    job.coordinator.rollback(job.handles, generation=2, ranks=2)
    check_same(job.directory, job.spec, local_of(job, 8))
    job.close()


def test_a_drain_gives_up_a_cut_to_come_and_waits_for_one_that_writes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 2)
    cut = job.coordinator.begin(job.handles, generation=1, step=4, kind="base", seconds=TIMEOUT)
    assert job.handles[0].call("drain", TIMEOUT).result(TIMEOUT).step == 2
    with pytest.raises(CutMissed, match="the shard is drained"):
        job.coordinator.finish(cut, {})
    server = ShardServer(spec_of(tmp_path / "other"), 0)
    writing, slow = threading.Event(), threading.Event()
    prepare = server._writer._prepare

    def wait(manifest: object) -> object:
        writing.set()
        slow.wait(TIMEOUT)
        return prepare(manifest)  # type: ignore[arg-type]

    server._writer._prepare = wait  # type: ignore[method-assign, assignment]
    server.cut(CutRequest(number=1, generation=1, incarnation=server.incarnation, step=0, kind="base"))
    writing.wait(TIMEOUT)
    threading.Timer(0.2, slow.set).start()
    assert server.drain(TIMEOUT).kind == "delta"
    assert server.committed(1, TIMEOUT).kind == "base"
    assert server.update(Tag(1, 1, 0, server.incarnation), *Trainer.nothing(server.spec)).applied == 0
    server.close()
    job.close()
