"""Failures that CI has no time for (`make test-cluster`): slow shards, two at once, no spare."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ray_lab import SECONDS, Lab, eventually, lab, pid_is_gone
from ray_runs import Run

from cpr_native.cluster.handle import ShardLost

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """Three places and two spare ones."""
    with lab(5) as made:
        yield made


def saved_run(place: Lab, **options: object) -> Run:
    """Return a run of three shards, saved after step 4 and trained to step 6."""
    run = Run(place, shards=3, **options)  # type: ignore[arg-type]
    run.train(1, 4)
    run.save(4)
    run.train(5, 6)
    return run


def check(run: Run, lost: set[int], last: int) -> None:
    """Assert that shards `lost` go on from step 4 after 6, the others were not touched."""
    assert {shard for shard, _ in run.trainer.lost} == lost
    pids = run.pids()
    for shard in range(3):
        run.check(shard, [(1, 4), (7, last)] if shard in lost else [(1, last)])
        assert (pids[shard] == run.begun[shard]) == (shard not in lost)


def test_two_nodes_at_once(three_places: Lab) -> None:
    run = saved_run(three_places)
    nodes = [three_places.node_of(run.pid(shard)) for shard in (0, 2)]
    for node in nodes:
        node.kill()
    run.train(7, 9)
    assert sorted(run.trainer.lost) == [(0, 2), (2, 2)]
    check(run, {0, 2}, 9)


def test_a_killed_node_without_a_spare(three_places: Lab) -> None:
    three_places.heal(places=3)
    run = saved_run(three_places)
    node = three_places.node_of(run.pid(0))
    before = run.handle(0)
    node.kill()
    with pytest.raises(ShardLost, match="PENDING: waiting for capacity for 1 shards: 3 nodes live, 2 offer"):
        run.cluster.shards.reconnect(0, 6.0, after=before.incarnation)
    report = run.cluster.report(timeout=2.0)
    assert [shard.state for shard in report.shards] == ["RESTARTING", "ALIVE", "ALIVE"]
    assert report.pending is not None
    three_places.nodes.add()
    run.train(7, 9)
    check(run, {0}, 9)


def test_a_failure_during_a_recovery(three_places: Lab) -> None:
    run = saved_run(three_places, tables=(("a", 400_000, 32), ("b", 3, 8)))
    lock = Path(run.spec.store) / "shards" / "0" / "LOCK"
    first = run.pid(0)
    os.kill(first, signal.SIGKILL)
    second = eventually(lambda: holder_but(lock, first), "the next life, which has the chain's lock")
    os.kill(second, signal.SIGKILL)
    run.train(7, 9)
    assert run.pid(0) not in (first, second)
    assert run.trainer.lost == [(0, 2)]
    check(run, {0}, 9)


def holder_but(lock: Path, known: int) -> int | None:
    """Return the process that has a chain, unless it is `known` or none yet."""
    with suppress(ValueError):
        pid = int(lock.read_text())
        return None if pid == known else pid
    return None


def test_a_slow_shard_is_waited_for(three_places: Lab) -> None:
    """It is not taken for dead: its node answers, only its process stands still for a while."""
    run = saved_run(three_places)
    pid = run.pid(0)
    os.kill(pid, signal.SIGSTOP)
    resumed = subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {pid}"])
    began = time.monotonic()
    run.train(7, 8)
    assert resumed.wait(SECONDS) == 0
    assert time.monotonic() - began >= 3.0
    check(run, set(), 8)


def test_a_shard_that_never_answers_is_reported(three_places: Lab) -> None:
    run = saved_run(three_places)
    os.kill(run.pid(0), signal.SIGSTOP)
    try:
        report = run.cluster.report(timeout=2.0)
        assert [shard.status is None for shard in report.shards] == [True, False, False]
        assert report.shards[0].problem == "shard 0: no answer after 2.0 s"
        with pytest.raises(ShardLost, match="its process is up and does not answer"):
            run.cluster.shards.reconnect(0, 3.0, after=1)
    finally:
        os.kill(run.begun[0], signal.SIGCONT)
    run.train(7, 7)
    check(run, set(), 7)


def test_a_process_taken_for_lost_that_runs_is_ended(three_places: Lab) -> None:
    run = saved_run(three_places)
    handle = run.cluster.shards.reconnect(0, SECONDS, after=1)
    assert handle.incarnation == 2
    assert pid_is_gone(run.begun[0])
