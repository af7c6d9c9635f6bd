"""Ranks in threads, shards that are killed, saves in between: what was applied, replayed, is what is held."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import TIMEOUT, LocalTables, Unique, batch_of, gradient_of, spec_of
from cluster.cluster_trainers import DENSE, Trainer
from cluster.test_random_histories import replay

from cpr_native.cluster.client import ShardClients, ShardLoss
from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import CutMissed
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.store import CheckpointStore

STEPS, RANKS = 40, 3

Applied = list[tuple[int, list[Any]]]


class Records:
    """What every life of every shard applied; a new life begins with what its newest commit has."""

    def __init__(self) -> None:
        self.applied: dict[int, Applied] = {}

    def make(self, spec: ClusterSpec, shard: int) -> ShardServer:
        """Make a server that records."""
        server = ShardServer(spec, shard)
        begin = min(server.recovery.watermarks)
        mine = [entry for entry in self.applied.get(shard, []) if entry[0] <= begin]
        self.applied[shard] = mine
        runner, done = server._runner, server._runner._apply

        def apply(step: int, updates: list[Any]) -> None:
            done(step, updates)
            mine.append((step, [(u.rows, u.gradient, u.multiplicity) for u in updates]))

        runner._apply = apply  # type: ignore[method-assign]
        return server


class Rank(threading.Thread):
    """A trainer without any barrier among ranks; that of rank 0 saves now and then."""

    def __init__(self, directory: LocalDirectory, rank: int, coordinator: Coordinator) -> None:
        super().__init__(name=f"rank-{rank}", daemon=True)
        self.losses: list[ShardLoss] = []
        self.saves: list[int] = []
        self.error: BaseException | None = None
        self.clients = ShardClients(
            directory, rank=rank, ranks=RANKS, timeout=TIMEOUT, on_lost=self.losses.append
        )
        self._router = Trainer(directory, directory.spec, rank=rank, ranks=RANKS)
        self._coordinator = coordinator

    def run(self) -> None:
        try:
            for step in range(1, STEPS + 1):
                self._train(step)
                if self.clients.rank == 0 and step % 4 == 0:
                    with suppress(CutMissed, ShardLost):
                        self._save(step)
            self.clients.settle(TIMEOUT)
        except BaseException as error:
            self.error = error

    def _train(self, step: int) -> None:
        spec, rank = self._router.spec, self.clients.rank
        unique = Unique.of(batch_of(spec, step, rank))
        sent = [self._router.route(unique, shard)[:2] for shard in range(spec.shards)]
        answers = self.clients.lookup([rows for rows, _ in sent])
        gradients = [gradient_of(answers.result(shard), step, rank) for shard in range(spec.shards)]
        self.clients.update([rows for rows, _ in sent], gradients, [times for _, times in sent])

    def _save(self, step: int) -> None:
        handles = [self.clients.handle(shard) for shard in range(self.clients.shards)]
        cut = self._coordinator.begin(handles, generation=1, step=step, kind="delta")
        self._coordinator.finish(cut, DENSE)
        self.saves.append(step)


@pytest.mark.parametrize("seed", range(3))
def test_shards_hold_what_they_applied(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of(tmp_path, ranks=RANKS)
    coordinator = Coordinator(
        CheckpointStore(tmp_path), spec.schema, spec.placement, run_id="run", timeout=TIMEOUT
    )
    records = Records()
    directory = LocalDirectory(spec, make=records.make)
    ranks = [Rank(directory, rank, coordinator) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    kills = 0
    while any(rank.is_alive() for rank in ranks):
        ranks[0].join(float(rng.random()) * 0.2)
        if kills < 8 and all(rank.is_alive() for rank in ranks):
            directory.kill(int(rng.integers(spec.shards)))
            kills += 1
    assert [rank.error for rank in ranks] == [None] * RANKS
    assert kills > 0
    for rank in ranks:
        assert sum(loss.lost_steps for loss in rank.losses) < STEPS * spec.shards
    for shard in range(spec.shards):
        server = directory.life(shard).server
        assert server.status().watermarks == (STEPS,) * RANKS
        steps = [step for step, _ in records.applied[shard]]
        assert steps == sorted(set(steps))
        local = LocalTables(spec)
        for _, updates in records.applied[shard]:
            replay(local, shard, updates)
        for table in spec.tables:
            got = server.rows(table.name)
            if got["begin"] is not None:
                rows = slice(got["begin"], got["begin"] + len(got["weight"]))
                assert np.array_equal(got["weight"], local.state(table.name)["weight"][rows])
    if ranks[0].saves:
        assert CheckpointStore(tmp_path).latest().step == ranks[0].saves[-1]
    directory.close()
    coordinator.close()
