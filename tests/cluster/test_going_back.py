"""Going back as a whole, what is refused until it succeeded, and new groups of trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import TIMEOUT, LocalTables
from cluster.cluster_trainers import Job, Trainer, check_same, train

from cpr_native.cluster.messages import RowIds, Tag, WrongGeneration
from cpr_native.cluster.regroup import Regrouped, regroup
from cpr_native.errors import CprError, NoCheckpointError


def test_a_damaged_point_is_passed_over(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 2)
    job.save(2, "base")
    train(job.trainers, 3, 4)
    job.save(4, "base")
    segments = sorted((tmp_path / "shards").glob("*1/segments/*"))
    data = bytearray(segments[-1].read_bytes())
    data[-3] ^= 1
    segments[-1].write_bytes(bytes(data))
    back = job.coordinator.rollback(job.handles, generation=2)
    assert back.point.step == 2
    assert len(back.skipped) == 1
    assert segments[-1].name in back.skipped[0]
    local = LocalTables(job.spec)
    for step in (1, 2):
        local.step(step)
    check_same(job.directory, job.spec, local)
    job.close()


def test_without_a_point_nothing_changes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train(job.trainers, 1, 2)
    with pytest.raises(NoCheckpointError, match="no point that every shard can go back to"):
        job.coordinator.rollback(job.handles, generation=2)
    train(job.trainers, 3, 3)
    job.close()


def test_a_shard_that_fails_to_go_back_refuses_until_all_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path)
    local = LocalTables(job.spec)
    train(job.trainers, 1, 2)
    job.save(2)
    train(job.trainers, 3, 4)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(job.directory.life(2).server._writer, "rollback", fail)
    with pytest.raises(CprError, match="going back to step 2 failed: shard 2: OSError"):
        job.coordinator.rollback(job.handles, generation=2)
    monkeypatch.undo()
    tag = Tag(2, 3, 0, job.handles[2].incarnation)
    nothing = RowIds(np.zeros(3, np.int64), np.zeros(0, np.int32))
    with pytest.raises(CprError, match="a rollback to step 2 did not end"):
        job.handles[2].lookup(tag, nothing).result(TIMEOUT)
    job.coordinator.rollback(job.handles, generation=3)
    for step in (1, 2):
        local.step(step)
    check_same(job.directory, job.spec, local)
    job.close()


def test_a_new_group_of_trainers_goes_on_with_the_rows(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    train(job.trainers, 1, 3)
    job.save(3)
    rows = job.trainers[0].look_up(4)
    job.trainers[0].send(4, rows)  # rank 1 dies before it sends: nobody's step 4 is applied
    befores = [
        life.call("begin_generation", 2, life.incarnation, 3, 1).result(TIMEOUT) for life in job.handles
    ]
    assert befores == [(3, 3)] * 3
    alone = Trainer(
        job.directory, job.spec, generation=2, acknowledged=dict.fromkeys(range(job.spec.shards), 3)
    )
    train([alone], 4, 5)
    local = LocalTables(job.spec)
    for step in range(1, 4):
        local.step(step, 2)
    for step in range(4, 6):
        local.step(step)
    check_same(job.directory, job.spec, local)
    with pytest.raises(WrongGeneration, match="expected 2, got 1"):
        job.trainers[1].look_up(4)
    job.directory.kill(0)  # the next life knows the generation without being told
    with pytest.raises(WrongGeneration, match="expected 2, got 1"):
        job.trainers[1].reconnect(0)
    job.close()


def test_trainers_regroup_where_the_shards_are(tmp_path: Path) -> None:
    job = Job(tmp_path, ranks=2)
    train(job.trainers, 1, 3)
    rows = [trainer.look_up(4) for trainer in job.trainers]
    job.trainers[0].send(4, rows[0])
    job.trainers[1].handles = {0: job.trainers[1].handles[0]}  # rank 1 dies after it sent to shard 0 alone
    job.trainers[1].send(4, rows[1])
    group = regroup(job.handles, ranks=1, timeout=TIMEOUT)
    assert group == Regrouped(generation=2, step=4, behind={0: 0, 1: 1, 2: 1})
    alone = Trainer(
        job.directory, job.spec, generation=2, acknowledged=dict.fromkeys(range(job.spec.shards), 4)
    )
    train([alone], 5, 6)
    with pytest.raises(ValueError, match="expected at least 6, which a shard has applied, got 5"):
        regroup(job.handles, ranks=1, step=5)
    assert regroup(job.handles, ranks=3, step=9).generation == 3
    job.directory.life(1).end()
    with pytest.raises(CprError, match="a shard could not be asked: shard 1: ShardLost"):
        regroup([job.directory.life(shard) for shard in range(3)], ranks=1)
    job.close()
