"""Trainers whose calls go through `ShardClients`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from cluster.cluster_jobs import TIMEOUT, Unique, batch_of, gradient_of
from cluster.cluster_trainers import Trainer

from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import CutRequest
from cpr_native.cluster.spec import ClusterSpec


@contextmanager
def running(spec: ClusterSpec, **options: Any) -> Iterator[LocalDirectory]:
    directory = LocalDirectory(spec, **options)
    try:
        yield directory
    finally:
        directory.close()


@dataclass
class Job:
    """One rank whose calls go through `ShardClients`; routing is that of the tests' `Trainer`."""

    directory: Any
    spec: ClusterSpec
    clients: ShardClients

    @classmethod
    def of(cls, directory: Any, spec: ClusterSpec, **options: Any) -> Job:
        clients = ShardClients(directory, timeout=TIMEOUT, patience=TIMEOUT, **options)
        return cls(directory, spec, clients)

    def route(self, step: int) -> list[Any]:
        router = Trainer.__new__(Trainer)  # routes without a connection
        router.spec = self.spec
        unique = Unique.of(batch_of(self.spec, step, self.clients.rank))
        return [router.route(unique, shard) for shard in range(self.clients.shards)]

    def look_up(self) -> Any:
        return self.clients.lookup([ids for ids, _, _ in self.route(self.clients.step)])

    def send(self, lookups: Any) -> None:
        step = self.clients.step
        routed = self.route(step)
        gradients = self.gradients(step, routed, [lookups.result(s) for s in range(self.clients.shards)])
        sent = self.clients.update([ids for ids, _, _ in routed], gradients, [t for _, t, _ in routed])
        assert sent == step

    def gradients(self, step: int, routed: list[Any], flat: list[Any]) -> list[Any]:
        """By shard; the noise of `gradient_of` is drawn for a table's rows of all shards."""
        found: list[list[Any]] = [[] for _ in routed]
        ends = [0] * len(routed)
        for number, table in enumerate(self.spec.tables):
            dim = table.embedding_dim
            parts = []
            for shard, (ids, _, _) in enumerate(routed):
                n = int(ids.counts[number]) * dim
                parts.append(flat[shard][ends[shard] : ends[shard] + n].reshape(-1, dim))
                ends[shard] += n
            whole = gradient_of(np.concatenate(parts), step, self.clients.rank)
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            for shard, part in enumerate(np.split(whole, cuts)):
                found[shard].append(part.reshape(-1))
        return [np.concatenate(parts).astype(np.float32) for parts in found]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.send(self.look_up())


def train_together(jobs: list[Job], steps: int) -> None:
    for _ in range(steps):
        lookups = [job.look_up() for job in jobs]
        for job, found in zip(jobs, lookups, strict=True):
            job.send(found)


def cut(job: Job, shard: int, step: int) -> None:
    handle = job.directory.handle(shard)
    request = CutRequest(
        number=step, generation=1, incarnation=handle.incarnation, step=step, kind="base", seconds=TIMEOUT
    )
    job.clients.call(shard, "cut", request)
