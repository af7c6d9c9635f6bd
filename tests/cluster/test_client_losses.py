"""`ShardClients` through the deaths of shards."""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from cluster.client_jobs import Job, cut, running, train_together
from cluster.cluster_jobs import TIMEOUT, LocalTables, spec_of
from cluster.cluster_trainers import check_same, cluster_state

from cpr_native.cluster.client import ShardClients, ShardLoss
from cpr_native.cluster.handle import Pending, ShardHandle
from cpr_native.cluster.local import LocalDirectory


def test_a_lost_shard_goes_on_with_what_it_had_not_acknowledged(tmp_path: Path) -> None:
    """Its rows begin anew (nothing was saved): they have the steps since, other shards have all."""
    spec = spec_of(tmp_path)
    losses: list[ShardLoss] = []
    whole, late = LocalTables(spec), LocalTables(spec)
    with running(spec) as directory:
        job = Job.of(directory, spec, on_lost=losses.append)
        job.train(4)
        job.clients.settle(TIMEOUT)
        lookups = job.clients.lookups[1]
        lives = [directory.handle(s).incarnation for s in range(3)]
        directory.kill(1)
        job.train(3)
        job.clients.settle(TIMEOUT)
        assert [directory.handle(s).incarnation for s in (0, 2)] == [lives[0], lives[2]]
        (loss,) = losses
        assert (loss.shard, loss.lost_steps, loss.lost_lookups, loss.resent) == (1, 4, lookups, 0)
        assert loss.incarnation == directory.handle(1).incarnation > lives[1]
        for step in range(1, 8):
            whole.step(step)
            if step > 4:
                late.step(step)
        for table in spec.tables:
            got = cluster_state(directory, spec, table.name)
            begin, end = spec.row_range(table.name, 1)
            for key in ("weight", "state", "count"):
                expected = whole.state(table.name)[key]
                expected[begin:end] = late.state(table.name)[key][begin:end]
                np.testing.assert_array_equal(got[key], expected)


@dataclass
class Silent(Pending[Any]):
    """An answer that never comes, though the call is carried out."""

    handle: Any

    def result(self, timeout: float) -> Any:
        self.handle.check()
        raise TimeoutError


@dataclass
class Muted:
    """A directory whose shard `shard` carries out updates and says nothing of it while `on`."""

    inner: LocalDirectory
    shard: int
    on: bool = False
    sent: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shards(self) -> int:
        return self.inner.shards

    def handle(self, shard: int) -> ShardHandle:
        return MutedHandle(self.inner.life(shard), self)

    def reconnect(self, shard: int, timeout: float, *, after: int) -> ShardHandle:
        self.inner.reconnect(shard, timeout, after=after)
        return self.handle(shard)


@dataclass
class MutedHandle:
    inner: Any
    directory: Muted

    @property
    def shard(self) -> int:
        return int(self.inner.shard)

    @property
    def incarnation(self) -> int:
        return int(self.inner.incarnation)

    def lookup(self, tag: Any, rows: Any) -> Any:
        return self.inner.lookup(tag, rows)

    def call(self, method: str, *args: Any) -> Any:
        return self.inner.call(method, *args)

    def update(self, tag: Any, *parts: Any) -> Any:
        answer = self.inner.update(tag, *parts)
        if self.shard != self.directory.shard:
            return answer
        self.directory.sent.append((tag.incarnation, tag.step))
        if self.directory.on:
            answer.result(TIMEOUT)
            return Silent(self.inner)
        return answer


@pytest.mark.parametrize("saved", [2, 3, 4])
def test_updates_without_an_answer_are_sent_again_and_applied_once(tmp_path: Path, saved: int) -> None:
    """Step 2 was acknowledged, 3 and 4 were applied without an answer; the shard saved step `saved`."""
    spec = spec_of(tmp_path, staleness=2)
    losses: list[ShardLoss] = []
    with running(spec) as directory:
        muted = Muted(directory, 1)
        job = Job.of(muted, spec, on_lost=losses.append)
        job.train(2)
        job.clients.settle(TIMEOUT)
        muted.on = True
        if saved == 2:
            cut(job, 1, 2)
        for step in (3, 4):
            if saved == step:
                cut(job, 1, step)
            job.train(1)
        committed = job.clients.call(1, "committed", saved, TIMEOUT)
        assert (committed.step, job.clients.kept[1]) == (saved, 2)
        before = cluster_state(directory, spec, "a")
        muted.on = False
        muted.sent.clear()
        directory.kill(1)
        job.clients.settle(TIMEOUT)
        life = directory.handle(1).incarnation
        assert muted.sent == [(life, step) for step in range(saved + 1, 5)]
        assert [(loss.lost_steps, loss.resent) for loss in losses] == [(0, 4 - saved)]
        after = cluster_state(directory, spec, "a")
        for key in ("weight", "state"):
            np.testing.assert_array_equal(before[key], after[key])


def test_a_shard_that_is_lost_while_a_lookup_is_on_its_way(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with running(spec) as directory:
        losses: list[ShardLoss] = []
        job = Job.of(directory, spec, on_lost=losses.append)
        job.train(1)
        ahead = job.look_up()
        for shard in range(3):
            directory.kill(shard)
        job.send(ahead)
        job.clients.settle(TIMEOUT)
        assert sorted(loss.shard for loss in losses) == [0, 1, 2]
        assert job.clients.step == 3


def test_a_life_that_ends_again_while_it_is_told(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    with running(spec) as directory:
        losses: list[ShardLoss] = []
        job = Job.of(directory, spec, on_lost=losses.append)
        job.train(2)
        job.clients.settle(TIMEOUT)
        again = 2

        class Dying:
            shards = directory.shards

            def handle(self, shard: int) -> ShardHandle:
                return directory.handle(shard)

            def reconnect(self, shard: int, timeout: float, *, after: int) -> ShardHandle:
                nonlocal again
                life = directory.reconnect(shard, timeout, after=after)
                if again:
                    again -= 1
                    directory.kill(shard)
                return life

        for link in job.clients._links:
            link._directory = Dying()
        directory.kill(0)
        job.train(2)
        job.clients.settle(TIMEOUT)
        assert [loss.shard for loss in losses] == [0]
        assert losses[0].lost_steps == 2


def test_hyperparameters_are_told_to_the_next_life(tmp_path: Path) -> None:
    """Rows of all shards have the rate of each step, though shard 0 lost what it had been told."""
    spec = spec_of(tmp_path)
    local = LocalTables(spec)
    rates = {1: 0.1, 2: 0.1, 3: 0.02, 4: 0.3}
    with running(spec) as directory:
        job = Job.of(directory, spec)
        for step, rate in rates.items():
            if step >= 3:
                job.clients.set_scalars({"learning_rate": rate})
            if step == 2:
                cut(job, 0, 2)
            job.train(1)
            if step == 2:
                job.clients.call(0, "committed", 2, TIMEOUT)
                directory.kill(0)
            if step == 3:
                job.clients.settle(TIMEOUT)
            for engine in local.engines.values():
                engine.learning_rate = rate
            local.step(step)
        job.clients.settle(TIMEOUT)
        check_same(directory, spec, local)


def test_committed_steps_are_no_loss(tmp_path: Path) -> None:
    """Lookups of steps up to a commit are forgotten; those after it are counted when they are lost."""
    spec = spec_of(tmp_path)
    losses: list[ShardLoss] = []
    with running(spec) as directory:
        job = Job.of(directory, spec, on_lost=losses.append)
        job.train(1)
        cut(job, 1, 2)
        job.train(1)
        assert job.clients.call(1, "committed", 2, TIMEOUT).step == 2
        job.clients.forget(1, 2)
        at_commit = job.clients.lookups[1]
        job.train(3)
        job.clients.settle(TIMEOUT)
        sent = job.clients.lookups[1]
        directory.kill(1)
        job.train(1)
        (loss,) = losses
        assert (loss.lost_steps, loss.lost_lookups) == (3, sent - at_commit)


def test_a_rank_that_waits_elsewhere_tells_the_next_life_where_it_is(tmp_path: Path) -> None:
    """As in a collective of trainers: rank 1 makes no call, and rank 0's lookup waits for its word."""
    spec = spec_of(tmp_path, ranks=2, lookup_seconds=10.0)
    losses: list[list[ShardLoss]] = [[], []]
    with running(spec) as directory:
        jobs = [Job.of(directory, spec, rank=rank, ranks=2, on_lost=losses[rank].append) for rank in range(2)]
        train_together(jobs, 2)
        for job in jobs:
            job.clients.settle(TIMEOUT)
        directory.kill(1)
        found = jobs[0].look_up()
        for shard in range(3):
            found.result(shard)
        assert [len(each) for each in losses] == [1, 0]
        other = jobs[1].look_up()  # is told of the loss now, in its own thread
        assert [[loss.lost_steps for loss in each] for each in losses] == [[2], [2]]
        jobs[0].send(found)
        jobs[1].send(other)
        for job in jobs:
            job.clients.settle(TIMEOUT)
            job.clients.close()
        assert jobs[0].clients.call(1, "status").watermarks == (3, 3)


def test_the_thread_that_looks_ends(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ranks=2)

    def looking() -> int:
        return sum(thread.name == "cpr-clients" for thread in threading.enumerate())

    def ends(before: int) -> bool:
        limit = monotonic() + TIMEOUT
        while looking() > before and monotonic() < limit:
            sleep(0.05)
        return looking() <= before

    with running(spec) as directory:
        gc.collect()
        before = looking()
        closed = ShardClients(directory, rank=0, ranks=2)
        dropped = ShardClients(directory, rank=1, ranks=2)
        assert looking() == before + 2
        closed.close()
        closed.close()
        assert closed.call(0, "status").shard == 0
        del dropped
        gc.collect()
        assert ends(before)
