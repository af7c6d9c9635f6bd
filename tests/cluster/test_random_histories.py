"""Random histories of a cluster against a model that replays what must have been applied, step by step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import OPTIMIZERS, TIMEOUT, LocalTables
from cluster.cluster_trainers import Job, Trainer

from cpr_native.policy import Mfu

Sent = dict[tuple[int, int], Any]


@dataclass
class Shard:
    """What a shard must be: the watermark of each rank, what was applied in order, what waits."""

    watermarks: list[int]
    applied: list[tuple[int, dict[int, Any]]] = field(default_factory=list)
    waiting: Sent = field(default_factory=dict)
    saved: tuple[list[int], list[tuple[int, dict[int, Any]]]] | None = None

    def take(self, rank: int, step: int, update: Any) -> None:
        if step > self.watermarks[rank]:
            self.waiting.setdefault((step, rank), update)
        while True:
            step = min(self.watermarks) + 1
            due = [rank for rank, watermark in enumerate(self.watermarks) if watermark < step]
            if not all((step, rank) in self.waiting for rank in due):
                return
            self.applied.append((step, {rank: self.waiting.pop((step, rank)) for rank in due}))
            for rank in due:
                self.watermarks[rank] = step

    def save(self) -> None:
        self.saved = (list(self.watermarks), list(self.applied))

    def lose(self) -> None:
        """Go back to what was saved; what waits is gone."""
        watermarks, applied = self.saved or ([0] * len(self.watermarks), [])
        self.watermarks, self.applied, self.waiting = list(watermarks), list(applied), {}

    def resume(self, rank: int, acknowledged: int) -> int:
        lost = max(0, acknowledged - self.watermarks[rank])
        self.watermarks[rank] += lost
        return lost


class History:
    """A job and its model, driven by random events."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ranks = int(self.rng.integers(1, 4))
        self.job = Job(
            path,
            ranks=self.ranks,
            shards=int(self.rng.integers(1, 4)),
            optimizer=OPTIMIZERS["adam" if seed % 2 else "row_wise_adagrad"],
            max_queued=4,
        )
        self.shards = [Shard([0] * self.ranks) for _ in range(self.job.spec.shards)]
        self.points: list[tuple[int, list[Shard]]] = []
        self.step = 0
        self.saves = 0

    def run(self, events: int) -> None:
        for _ in range(events):
            chosen = self.rng.random()
            if chosen < 0.12 and self.step:
                self.save()
            elif chosen < 0.18 and self.points:
                self.go_back()
            else:
                self.train()
            if self.rng.random() < 0.15:
                self.kill()
        self.check()

    def train(self) -> None:
        self.step += 1
        found = [trainer.look_up(self.step) for trainer in self.job.trainers]
        for rank in self.rng.permutation(self.ranks).tolist():
            trainer = self.job.trainers[rank]
            trainer.send(self.step, found[rank], told=lambda s, u, r=rank: self.sent(s, r, u))
            if self.rng.random() < 0.3:
                for shard in range(len(self.shards)):
                    trainer.resend(shard)  # nothing changes by that
            if self.rng.random() < 0.1:
                self.kill()

    def sent(self, shard: int, rank: int, update: Any) -> None:
        self.shards[shard].take(rank, self.step, update)

    def kill(self) -> None:
        shard = int(self.rng.integers(len(self.shards)))
        self.job.directory.kill(shard)
        self.shards[shard].lose()
        for rank in self.rng.permutation(self.ranks).tolist():
            trainer = self.job.trainers[rank]
            expected = self.shards[shard].resume(rank, trainer.acknowledged[shard])
            kept = deepcopy(trainer.kept[shard])
            trainer.reconnect(shard)
            assert trainer.lost[-1] == (shard, expected)
            for step, update in sorted(kept.items()):
                self.shards[shard].take(rank, step, update)

    def save(self) -> None:
        if any(min(shard.watermarks) != self.step for shard in self.shards):
            return  # a rank has not learnt yet that a shard lost its step
        self.saves += 1
        priority = bool(self.points) and self.rng.random() < 0.3
        kind: Any = "priority" if priority else "delta"
        policy = Mfu(fraction=1.0) if priority else None
        save = self.job.save(self.step, kind, policy=policy, save=self.saves)
        for shard in self.shards:
            shard.save()
        if save.kind != "priority":
            self.points.append((self.step, deepcopy(self.shards)))

    def go_back(self) -> None:
        self.step, shards = self.points[-1]
        self.shards = deepcopy(shards)
        self.job.generation += 1
        back = self.job.coordinator.rollback(
            self.job.handles, generation=self.job.generation, ranks=self.ranks
        )
        assert back.point.step == self.step
        for shard in self.shards:
            shard.watermarks = [self.step] * self.ranks
        self.job.trainers = [
            Trainer(
                self.job.directory,
                self.job.spec,
                rank=rank,
                ranks=self.ranks,
                generation=self.job.generation,
                acknowledged=dict.fromkeys(range(len(self.shards)), self.step),
            )
            for rank in range(self.ranks)
        ]

    def check(self) -> None:
        """Assert that every shard holds what its updates give, applied one after the other."""
        for number, shard in enumerate(self.shards):
            status = self.job.handles[number].call("status").result(TIMEOUT)
            assert status.watermarks == tuple(shard.watermarks)
            local = LocalTables(self.job.spec)
            for step, updates in shard.applied:
                for engine in local.engines.values():
                    engine.step = step - 1  # Adam's t is the job's, whatever the shard has lost
                replay(local, number, [updates[rank] for rank in sorted(updates)])
            for table in self.job.spec.tables:
                got = self.job.handles[number].call("rows", table.name).result(TIMEOUT)
                if got["begin"] is None:
                    continue
                begin = got["begin"]
                expected = local.state(table.name)
                for key in ("weight", "state"):
                    rows = expected[key][begin : begin + len(got[key])]
                    assert np.array_equal(got[key], rows), (number, table.name, key)


def replay(local: LocalTables, shard: int, updates: list[Any]) -> None:
    """Apply the updates of one step, in the order of ranks, to the whole tables."""
    begins = local.spec.begins(shard)
    for index, table in enumerate(local.spec.tables):
        sums: dict[int, Any] = {}
        for ids, gradient, times in updates:
            first, last = ids.offsets[index], ids.offsets[index + 1]
            at = int((ids.counts[:index] * local.spec.dims[:index]).sum())
            flat = gradient[at : at + int(last - first) * table.embedding_dim]
            values = flat.reshape(-1, table.embedding_dim)
            for row, g, n in zip(
                (ids.rows[first:last] + begins[index]).tolist(), values, times[first:last], strict=True
            ):
                sums[row] = (sums[row][0] + g, sums[row][1] + n) if row in sums else (g, n)
        rows = np.array(sorted(sums), np.int64)
        total = np.array([sums[row][0] for row in rows.tolist()], np.float32)
        times_of = np.array([sums[row][1] for row in rows.tolist()], np.uint32)
        local.update(table.name, rows, total.reshape(len(rows), table.embedding_dim), times_of)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_history_is_replayed_to_the_bit(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    history.run(30)
    history.job.close()
