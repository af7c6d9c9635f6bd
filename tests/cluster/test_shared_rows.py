"""A shard whose rows lie in shared memory: the next process has them, to the step."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import OPTIMIZERS, TIMEOUT, LocalTables, Unique, batch_of, gradient_of, spec_of
from cluster.cluster_trainers import Job, Trainer, check_same, train
from cluster.dying_shard import die_within

from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import CutRequest, Tag
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.shared_books import KEEPER, free_memory
from cpr_native.cluster.spec import ClusterSpec


def shared(path: Path, **options: Any) -> ClusterSpec:
    return spec_of(path / "store", shared=str(path / "shared"), **options)


def updates_of(spec: ClusterSpec, steps: int) -> list[Any]:
    """Return what a single shard is sent in `steps` steps, from the rows of a local collection."""
    local, sent = LocalTables(spec), []
    for step in range(1, steps + 1):
        unique = Unique.of(batch_of(spec, step))
        trainer = Trainer.__new__(Trainer)
        trainer.spec = spec
        ids, times, _ = trainer.route(unique, 0)
        rows = [local.lookup(t.name, unique.rows[t.name]) for t in spec.tables]
        gradient = np.concatenate([gradient_of(r, step, 0).reshape(-1) for r in rows])
        sent.append((ids, gradient.astype(np.float32), times))
        local.step(step)
    return sent


@pytest.mark.parametrize("when", ["before", "middle", "after"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_process_that_dies_in_an_update_loses_nothing(tmp_path: Path, optimizer: str, when: str) -> None:
    spec = shared(tmp_path, shards=1, optimizer=OPTIMIZERS[optimizer])
    updates = updates_of(spec, 6)
    die_within(spec, 0, updates, when)
    directory = LocalDirectory(spec)
    server = directory.life(0).server
    assert (server.recovery.source, server.recovery.watermarks) == ("memory", (5,))
    local = LocalTables(spec)
    for step in range(1, 6):
        local.step(step)
    check_same(directory, spec, local)
    resumed = server.resume(1, server.incarnation, 0, 1, 5)  # the answer to step 5 was lost, too
    assert (resumed.watermark, resumed.lost) == (5, 0)
    for step in (5, 6):
        assert server.update(Tag(1, step, 0, server.incarnation), *updates[step - 1]).applied == step
    local.step(6)
    check_same(directory, spec, local)
    for table in spec.tables:
        got, expected = server.rows(table.name), local.state(table.name)
        assert (got["count"] >= expected["count"]).all()
        assert (got["dirty"] >= expected["dirty"]).all()
    directory.close()


def test_what_was_dirty_is_saved_by_the_next_process(tmp_path: Path) -> None:
    job = Job(tmp_path / "store", shared=str(tmp_path / "shared"))
    local = LocalTables(job.spec)
    train(job.trainers, 1, 3)
    job.save(3)
    train(job.trainers, 4, 6)
    job.close()
    del job
    gc.collect()  # the memory is free when its tables are
    again = Job(tmp_path / "store", shared=str(tmp_path / "shared"))
    recoveries = [again.directory.life(shard).server.recovery for shard in range(3)]
    assert {(r.source, r.watermarks, r.refused) for r in recoveries} == {("memory", (6,), None)}
    assert again.trainers[0].look_up(7)
    assert again.save(6).kind == "delta"
    again.coordinator.rollback(again.handles, generation=2)
    for step in range(1, 7):
        local.step(step)
    check_same(again.directory, again.spec, local)
    again.close()


def test_a_save_without_its_books_is_found_in_the_chain(tmp_path: Path) -> None:
    spec = shared(tmp_path, shards=1)
    server = ShardServer(spec, 0)
    updates = updates_of(spec, 4)
    for step in (1, 2):
        server.update(Tag(1, step, 0, server.incarnation), *updates[step - 1])
    server.cut(CutRequest(number=1, generation=1, incarnation=server.incarnation, step=2, kind="base"))
    server.committed(1, TIMEOUT)  # no step comes after it: the books do not know it
    server.close()
    del server
    gc.collect()
    again = ShardServer(spec, 0)
    assert (again.recovery.source, again.recovery.watermarks) == ("memory", (2,))
    assert again.status().last_step == 2
    for step in (3, 4):
        again.update(Tag(1, step, 0, again.incarnation), *updates[step - 1])
    again.cut(CutRequest(number=2, generation=1, incarnation=again.incarnation, step=4, kind="delta"))
    assert again.committed(2, TIMEOUT).kind == "delta"
    again.close()


def test_rows_of_another_history_are_refused(tmp_path: Path) -> None:
    spec = shared(tmp_path, shards=1)
    server = ShardServer(spec, 0)
    for step, sent in enumerate(updates_of(spec, 3), 1):
        server.update(Tag(1, step, 0, server.incarnation), *sent)
    server.close()
    del server
    gc.collect()
    plain = spec_of(tmp_path / "store", shards=1)  # a life without shared memory, on another node
    other = ShardServer(plain, 0)
    other.update(Tag(1, 1, 0, other.incarnation), *updates_of(spec, 1)[0])
    other.cut(CutRequest(number=1, generation=1, incarnation=other.incarnation, step=1, kind="base"))
    other.committed(1, TIMEOUT)
    expected = other.rows("a")
    other.close()
    again = ShardServer(spec, 0)
    assert again.recovery.source == "checkpoint"
    assert again.recovery.watermarks == (1,)
    assert again.recovery.refused is not None
    assert "is not of the process that left step 3" in again.recovery.refused
    assert np.array_equal(again.rows("a")["weight"], expected["weight"])
    again.close()


def test_a_shard_whose_memory_is_in_use_runs_without(tmp_path: Path) -> None:
    spec = shared(tmp_path, shards=1)
    first = ShardServer(spec, 0)
    second = ShardServer(spec, 0)  # the first is frozen, as it were
    assert second.recovery.source == "initial"
    assert second.recovery.refused is not None
    assert "in use" in second.recovery.refused
    assert second.incarnation == first.incarnation + 1
    second.close()
    first.close()


def test_a_rollback_counts_for_the_next_process(tmp_path: Path) -> None:
    job = Job(tmp_path / "store", shared=str(tmp_path / "shared"), shards=2)
    train(job.trainers, 1, 2)
    job.save(2)
    train(job.trainers, 3, 4)
    job.coordinator.rollback(job.handles, generation=2)
    job.close()
    del job
    gc.collect()
    again = LocalDirectory(shared(tmp_path, shards=2))
    local = LocalTables(again.spec)
    for step in (1, 2):
        local.step(step)
    check_same(again, again.spec, local)
    status = again.life(0).server.status()
    assert (status.recovery.source, status.watermarks, status.generation) == ("memory", (2,), 2)
    again.close()


def test_a_keeper_holds_rows_that_no_file_has(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, shards=1, shared=KEEPER, run_id=f"keeper-{tmp_path.name[-20:]}-{os.getpid()}")
    updates = updates_of(spec, 3)
    try:
        die_within(spec, 0, updates, "middle")
        server = ShardServer(spec, 0)
        assert (server.recovery.source, server.recovery.watermarks) == ("memory", (2,))
        assert server.update(Tag(1, 3, 0, server.incarnation), *updates[2]).applied == 3
        local = LocalTables(spec)
        for step in (1, 2, 3):
            local.step(step)
        for table in spec.tables:
            assert np.array_equal(server.rows(table.name)["weight"], local.state(table.name)["weight"])
        server.close()
    finally:
        assert free_memory(spec, 0)
    assert not free_memory(spec, 0)


def test_memory_is_freed_when_a_run_is_over(tmp_path: Path) -> None:
    spec = shared(tmp_path, shards=2)
    directory = LocalDirectory(spec)
    directory.close()
    del directory
    gc.collect()
    assert [free_memory(spec, shard) for shard in (0, 1, 0)] == [True, True, False]
    assert list((tmp_path / "shared").iterdir()) == []
    assert not free_memory(spec_of(tmp_path), 0)
