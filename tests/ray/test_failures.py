"""Failures of shards and nodes on a live Ray cluster: what is lost, what stays, that training goes on."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster.cluster_jobs import spec_of
from ray_lab import SECONDS, Lab, eventually, pid_is_gone
from ray_runs import Run
from ray_training import trainer_of
from sharded.test_manager import undisturbed

from cpr_native.cli import main
from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.messages import RowIds, Tag
from cpr_native.errors import CprError, SchemaMismatchError
from cpr_native.policy import Delta, Mfu
from cpr_native.ray import ClusterSettings, RayCluster, publish_progress, runs
from cpr_native.store import CheckpointStore

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def check_lost_since(run: Run, saved: int, failed_after: int, last: int) -> None:
    """Assert that shard 0 lost the steps from its commit to the failure, and no other shard anything."""
    assert run.trainer.lost == [(0, failed_after - saved)]
    run.check(0, [(1, saved), (failed_after + 1, last)])
    run.check(1, [(1, last)])
    pids = run.pids()
    assert pids[0] != run.begun[0]
    assert pids[1] == run.begun[1]


def test_a_killed_process(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    before = run.handle(0)
    node = before.life.node
    os.kill(run.pid(0), signal.SIGKILL)
    eventually(lambda: run.cluster.shards.reconnect(0, SECONDS, after=1), "the next life")
    with pytest.raises(ShardLost, match="incarnation: expected 2, got 1"):
        before.call("status").result(SECONDS)
    rows = RowIds(np.array([1, 0, 0], np.int64), np.array([0], np.int32))
    with pytest.raises(ShardLost, match="incarnation: expected 2, got 1"):
        before.lookup(Tag(1, 7, 0, before.incarnation), rows).result(SECONDS)
    run.train(7, 9)
    check_lost_since(run, saved=4, failed_after=6, last=9)
    assert run.recovery(0).source == "checkpoint"
    assert run.handle(0).life.node == node, "with its node alive it is not moved"
    assert run.handle(0).incarnation == 2


def test_a_killed_process_that_left_shared_memory(three_places: Lab) -> None:
    run = Run(three_places, shared=str(three_places.folder / "shm"))
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    os.kill(run.pid(0), signal.SIGKILL)
    run.train(7, 9)
    assert run.recovery(0).source == "memory"
    assert run.trainer.lost == [(0, 0)]
    for shard in (0, 1):
        run.check(shard, [(1, 9)])
    assert len(list((three_places.folder / "shm").iterdir())) == 2
    run.cluster.stop()
    assert list((three_places.folder / "shm").iterdir()) == []


def test_a_killed_node_with_a_spare(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    node = three_places.node_of(run.pid(0))
    node.kill()
    run.train(7, 9)
    check_lost_since(run, saved=4, failed_after=6, last=9)
    assert run.handle(0).life.address != node.address


def test_a_frozen_node(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    before = run.pid(0)
    node = three_places.node_of(before)
    node.freeze()
    run.train(7, 8)
    check_lost_since(run, saved=4, failed_after=6, last=8)
    run.save(8)
    node.thaw()
    eventually(lambda: pid_is_gone(before), "the end of the process that was frozen")
    run.train(9, 9)
    check_lost_since(run, saved=4, failed_after=6, last=9)
    assert run.handle(0).incarnation == 2


def test_a_process_killed_in_a_save(three_places: Lab) -> None:
    run = Run(three_places, tables=(("a", 600_000, 32), ("b", 3, 8)))
    run.train(1, 2)
    run.save(2)
    number, saved, last = kill_in_a_save(run, saved=2)
    with pytest.raises(ShardLost):
        run.committed(number)
    run.train(last + 1, last + 2)
    check_lost_since(run, saved=saved, failed_after=last, last=last + 2)


def kill_in_a_save(run: Run, saved: int) -> tuple[int, int, int]:
    """Stop shard 0 when a save has begun and kill it, unless it was quicker: then two steps later.

    Returns the number of the cut, the step of the save before it, and its own.
    """
    chain = Path(run.spec.store) / "shards" / "0"
    for step in range(saved + 2, saved + 22, 2):
        run.train(step - 1, step)
        manifests = len(list((chain / "manifests").iterdir()))
        files = len(list((chain / "segments").rglob("*")))
        number = run.cut(step)[0]
        eventually(lambda n=files: len(list((chain / "segments").rglob("*"))) > n, "the begin of the save")
        os.kill(run.pid(0), signal.SIGSTOP)
        if len(list((chain / "manifests").iterdir())) == manifests:
            os.kill(run.pid(0), signal.SIGKILL)
            return number, saved, step
        os.kill(run.pid(0), signal.SIGCONT)
        run.committed(number)
        saved = step
    pytest.fail("every save was over before its process was stopped: use larger tables")


def test_a_drained_node(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    node = three_places.node_of(run.pid(0))
    node.terminate()
    steps = itertools.count(7)
    last = eventually(lambda: run.moved_at(next(steps)), "the shard's move")
    assert run.trainer.lost == [(0, 0)]
    assert run.handle(0).life.address != node.address
    assert run.recovery(0).source == "checkpoint"
    for shard in (0, 1):
        run.check(shard, [(1, last)])


def test_a_process_that_is_told_to_end(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 3)
    os.kill(run.pid(0), signal.SIGTERM)
    eventually(lambda: pid_is_gone(run.begun[0]), "its end")
    run.train(4, 6)
    assert run.trainer.lost == [(0, 0)]
    assert run.recovery(0).source == "checkpoint"
    for shard in (0, 1):
        run.check(shard, [(1, 6)])


def test_status_and_stop(three_places: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(three_places)
    run.train(1, 4)
    run.save(4)
    run.train(5, 5)
    name, address = run.cluster.settings.run, three_places.nodes.address
    publish_progress(name, {"step": 5, "pls": 0.001, "target_pls": 0.02, "recoveries": 1, "lost_lookups": 7})
    assert main(["cluster", "status", "--address", address, "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert [(s["life"]["incarnation"], s["status"]["last_step"], s["lag"]) for s in seen["shards"]] == [
        (1, 4, 0)
    ] * 2
    assert [s["status"]["pid"] for s in seen["shards"]] == run.begun
    assert main(["cluster", "status", "--address", address, "--run", name]) == 0
    shown = capsys.readouterr().out
    assert f"run {name}: 2 shards, 104 rows" in shown
    assert "training: step 5, PLS 0.1000% of 2.00% at most, recoveries 1, lost lookups 7" in shown
    assert main(["cluster", "status", "--address", address, "--run", "other"]) == 1
    assert name in capsys.readouterr().err
    assert main(["cluster", "stop", "--address", address]) == 0
    for pid in run.begun:
        eventually(lambda pid=pid: pid_is_gone(pid), "the end of a shard")
    assert runs() == []
    point = CheckpointStore(run.spec.store).shard_plan(0)
    assert point.chains[0].commits[-1].step == 5, "what was not saved was saved at the end"


def test_a_launch_without_capacity_waits_and_says_so(three_places: Lab) -> None:
    said: list[str] = []
    spec = spec_of(three_places.store(), shards=4)
    settings = ClusterSettings(run="large", start_timeout=3.0, report_every=1.0)
    with pytest.raises(TimeoutError, match="PENDING: waiting for capacity for 4 shards"):
        RayCluster.launch(spec, settings, pending=said.append)
    assert len(said) >= 2
    assert "4 nodes live, 3 offer a place, 3 have it free" in said[-1]
    assert runs() == []


def test_a_launch_waits_for_a_node_that_joins(three_places: Lab) -> None:
    three_places.heal(places=1)
    said: list[str] = []
    spec = spec_of(three_places.store(), shards=2)

    def pending(line: str) -> None:
        if not said:
            three_places.nodes.add()
        said.append(line)

    run = RayCluster.launch(spec, ClusterSettings(run="late", report_every=1.0), pending=pending)
    assert said
    assert [shard.state for shard in run.report().shards] == ["ALIVE", "ALIVE"]
    run.stop()


def test_a_second_run_of_the_same_name_is_refused(three_places: Lab) -> None:
    run = Run(three_places)
    with pytest.raises(CprError, match="exists in this Ray cluster"):
        RayCluster.launch(run.spec, run.cluster.settings)
    assert run.pids() == run.begun


def test_what_keeps_a_shard_from_beginning_is_raised(three_places: Lab) -> None:
    run = Run(three_places)
    run.train(1, 1)
    run.save(1)
    run.cluster.stop()
    other = spec_of(Path(run.spec.store), shards=2, tables=(("a", 62, 8),))
    with pytest.raises(SchemaMismatchError):
        three_places.launch(other)
    assert runs() == []


def test_the_probe_finds_a_store_that_is_another_one(three_places: Lab) -> None:
    three_places.heal(places=1)
    store = three_places.store()
    store.mkdir()
    mount = f'mount -t tmpfs none {store} && exec "$@"'
    three_places.nodes.add(prefix=["unshare", "--mount", "sh", "-c", mount, "sh"])
    with pytest.raises(CprError, match=r"node 127\.0\.0\.\d+: store .*FileNotFoundError"):
        three_places.launch(spec_of(store, shards=2))
    assert runs() == []
    assert list(store.iterdir()) == []


def test_a_full_recovery_of_a_job_ends_as_if_nothing_had_happened(three_places: Lab, tmp_path: Path) -> None:
    trainer, shards = trainer_of(three_places, Delta())
    before = shards.pids()
    with trainer.manager as manager:
        manager.start()
        trainer.train(before={13: lambda: shards.kill(1)})
    assert trainer.state() == undisturbed(tmp_path)
    (report,) = manager.recoveries
    assert (report.mode, report.shards) == ("full", (1,))
    assert report.lost_samples > 0
    after = shards.pids()
    assert (after[0], after[2]) == (before[0], before[2])


def test_a_partial_recovery_of_a_job_is_reported(three_places: Lab) -> None:
    trainer, shards = trainer_of(three_places, Mfu(fraction=0.25))
    before = shards.pids()
    with trainer.manager as manager:
        manager.start()
        trainer.train(before={13: lambda: shards.kill(1)})
    (report,) = manager.recoveries
    assert (report.mode, report.shards, report.restart) == ("partial", (1,), False)
    assert report.lost_lookups > 0
    assert manager.pls == report.pls > 0.0
    assert report.rows_restored > 0
    assert report.seconds > 0.0
    assert manager.steps == 24
    after = shards.pids()
    assert (after[0], after[2]) == (before[0], before[2])
