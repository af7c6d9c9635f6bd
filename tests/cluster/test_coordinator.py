"""Cuts, global commits and going back: all shards at one step, or no such point."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import OPTIMIZERS, TIMEOUT, LocalTables, spec_of
from cluster.cluster_trainers import DENSE, Job, Trainer, check_same, train

from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.messages import CutMissed, CutRequest, WrongGeneration
from cpr_native.cluster.server import ShardServer
from cpr_native.errors import FencedError
from cpr_native.policy import Drift, Mfu, Scar, Ssu
from cpr_native.store import CheckpointStore


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_shards_go_back_to_one_step(tmp_path: Path, optimizer: str, ranks: int) -> None:
    job = Job(tmp_path, ranks=ranks, optimizer=OPTIMIZERS[optimizer])
    local = LocalTables(job.spec)
    saves = []
    for step in range(1, 8):
        train(job.trainers, step, step)
        if step in (2, 4, 5):
            saves.append(job.save(step))
    assert [save.kind for save in saves] == ["base", "delta", "delta"]
    train(job.trainers, 8, 9)
    back = job.coordinator.rollback(job.handles, generation=2, ranks=ranks)
    assert (back.point.step, back.skipped) == (5, ())
    assert back.point.dense()["step"] == [5]
    assert {recovery.watermarks for recovery in back.shards} == {(5,) * ranks}
    for step in range(1, 6):
        local.step(step, ranks)
    check_same(job.directory, job.spec, local)
    for step in range(6, 12):
        local.step(step, ranks)
    job.generation = 2
    again = [
        Trainer(job.directory, job.spec, rank=r, ranks=ranks, generation=2,
                acknowledged=dict.fromkeys(range(job.spec.shards), 5))
        for r in range(ranks)
    ]  # fmt: skip
    train(again, 6, 11)
    check_same(job.directory, job.spec, local)
    assert job.save(11).kind == "delta"
    with pytest.raises(WrongGeneration):
        job.trainers[0].look_up(10)
    job.close()


def test_a_cut_is_of_its_step_though_ranks_run_ahead(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    local = LocalTables(job.spec)
    first, second = job.trainers
    train(job.trainers, 1, 3)
    rows = [trainer.look_up(4) for trainer in job.trainers]
    second.send(4, rows[1])  # waits for rank 0
    cut = job.coordinator.begin(job.handles, generation=1, step=4, kind="base")
    first.send(4, rows[0])
    train(job.trainers, 5, 7)
    save = job.coordinator.finish(cut, DENSE)
    assert [committed.step for committed in save.shards] == [4] * 3
    for step in range(1, 5):
        local.step(step, 2)
    job.coordinator.rollback(job.handles, generation=2, ranks=2)
    check_same(job.directory, job.spec, local)
    job.close()


def test_counts_in_commits_are_those_of_lookups(tmp_path: Path) -> None:
    job = Job(tmp_path)
    local = LocalTables(job.spec)
    train(job.trainers, 1, 6)
    for step in range(1, 7):
        local.step(step)
    save = job.save(6)
    total = sum(int(local.state(table.name)["count"].sum()) for table in job.spec.tables)
    assert sum(save.lookups) == total
    for table in job.spec.tables:
        parts = [handle.call("rows", table.name).result(TIMEOUT) for handle in job.handles]
        assert all(p["begin"] is None or not p["count"].any() | p["dirty"].any() for p in parts)
    job.close()


@pytest.mark.parametrize("policy", [Mfu(fraction=0.25), Ssu(fraction=0.125), Drift(fraction=0.25)])
def test_priority_cuts_take_some_rows(tmp_path: Path, policy: Any) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 4)
    job.save(4, "base")
    train(job.trainers, 5, 6)
    save = job.save(6, "priority", policy=policy, save=1)
    assert save.kind == "priority"
    rows = sum(sum(committed.rows.values()) for committed in save.shards)
    assert 0 < rows < 104
    with pytest.raises(ValueError, match="shards don't keep"):
        job.save(6, "priority", policy=Scar())
    assert job.save(6, "delta").step == 6
    job.close()


def test_a_cut_that_comes_too_late_is_missed(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 3)
    with pytest.raises(CutMissed, match="expected to be asked for before step 3 is applied, got 3"):
        job.save(2)
    assert job.save(3).step == 3
    job.close()


def test_a_cut_whose_step_does_not_come_is_given_up(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 2)
    cut = job.coordinator.begin(job.handles, generation=1, step=5, kind="base", seconds=0.1)
    with pytest.raises(CutMissed, match=r"cut 4294967297 of step 5: not committed within 0\.1 s"):
        job.coordinator.finish(cut, DENSE)
    assert [life.call("status").result(TIMEOUT).cut for life in job.handles] == [None] * 3
    assert job.save(2).step == 2
    job.close()


def test_a_cut_that_misses_its_deadline_merges_its_marks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    local = LocalTables(job.spec)
    train(job.trainers, 1, 3)
    job.save(3)
    train(job.trainers, 4, 5)
    before = [
        {t.name: life.call("rows", t.name).result(TIMEOUT) for t in job.spec.tables} for life in job.handles
    ]
    slow = threading.Event()
    writer = job.directory.life(1).server._writer
    prepare = writer._prepare

    def wait(manifest: Any) -> Any:
        ref = prepare(manifest)
        slow.wait(TIMEOUT)
        return ref

    monkeypatch.setattr(writer, "_prepare", wait)
    cut = job.coordinator.begin(job.handles, generation=1, step=5, kind="delta", seconds=2.0)
    threading.Timer(2.1, slow.set).start()
    with pytest.raises(
        CutMissed, match=r"shard 1: CutMissed: shard 1: cut .* of step 5: not committed within"
    ):
        job.coordinator.finish(cut, DENSE)
    monkeypatch.undo()
    after = {t.name: job.handles[1].call("rows", t.name).result(TIMEOUT) for t in job.spec.tables}
    for table in job.spec.tables:
        for key in ("weight", "state", "count", "dirty") if after[table.name]["begin"] is not None else ():
            assert np.array_equal(before[1][table.name][key], after[table.name][key]), (table.name, key)
    assert [point.step for point in CheckpointStore(tmp_path).points()] == [
        3
    ]  # though two shards committed 5
    save = job.save(5)
    for step in range(1, 6):
        local.step(step)
    job.coordinator.rollback(job.handles, generation=2)
    assert save.step == 5
    check_same(job.directory, job.spec, local)
    job.close()


def test_a_global_commit_that_fails_half_way_is_never_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    local = LocalTables(job.spec)
    train(job.trainers, 1, 3)
    job.save(3)
    train(job.trainers, 4, 5)

    def fail(manifest: Any, ref: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(job.coordinator._writer, "_publish", fail)
    with pytest.raises(OSError, match="No space left"):
        job.save(5)
    monkeypatch.undo()
    assert [life.call("status").result(TIMEOUT).last_step for life in job.handles] == [5, 5, 5]
    assert CheckpointStore(tmp_path).latest("exact").step == 3
    back = job.coordinator.rollback(job.handles, generation=2)
    assert back.point.step == 3
    for step in range(1, 4):
        local.step(step)
    check_same(job.directory, job.spec, local)
    job.generation = 2
    again = Trainer(
        job.directory, job.spec, generation=2, acknowledged=dict.fromkeys(range(job.spec.shards), 3)
    )
    train([again], 4, 6)
    assert job.save(6).kind == "delta"  # after the branch that was left
    job.coordinator.rollback(job.handles, generation=3)
    for step in range(4, 7):
        local.step(step)
    check_same(job.directory, job.spec, local)
    job.close()


def test_a_newer_coordinator_fences_the_older(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 2)
    job.save(2)
    newer = Coordinator(CheckpointStore(tmp_path), job.spec.schema, job.spec.placement)
    assert newer.run_id == "run"
    with pytest.raises(FencedError):
        job.save(2, "base")
    train(job.trainers, 3, 3)
    cut = newer.begin(job.handles, generation=1, step=3, kind="delta", seconds=TIMEOUT)
    with pytest.raises(CutMissed):  # one cut at a time
        newer.begin(job.handles, generation=1, step=3, kind="delta")
    assert newer.finish(cut, DENSE).kind == "delta"
    newer.close()
    job.close()


def test_a_request_is_carried_out_once(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    request = CutRequest(number=9, generation=1, incarnation=server.incarnation, step=0, kind="base")
    for _ in range(2):
        server.cut(request)
    first = server.committed(9, TIMEOUT)
    assert server.committed(9, TIMEOUT) == first
    assert first.rows == {"a": 21, "b": 1, "c": 14}
    server.abandon(9, "too late for that")
    assert server.committed(9, TIMEOUT) == first
    with pytest.raises(CutMissed, match="no cut 8"):
        server.committed(8, TIMEOUT)
    server.close()
