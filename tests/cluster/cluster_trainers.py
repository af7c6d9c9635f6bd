"""Trainers of a small run over shards, and what the shards hold, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cluster.cluster_jobs import TIMEOUT, LocalTables, Unique, batch_of, gradient_of, spec_of
from numpy.typing import NDArray

from cpr_native.cluster.coordinator import Coordinator, GlobalSave
from cpr_native.cluster.handle import ShardDirectory, ShardHandle, ShardLost
from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import RowIds, Tag
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.policy import SaveKind
from cpr_native.store import CheckpointStore

DENSE = {"w": np.arange(3, dtype=np.float32)}


@dataclass
class Trainer:
    """One rank without threads: looks up, updates, resends after a shard was lost, counts what it lost."""

    directory: ShardDirectory
    spec: ClusterSpec
    rank: int = 0
    ranks: int = 1
    generation: int = 1
    handles: dict[int, ShardHandle] = field(default_factory=dict)
    kept: dict[int, dict[int, tuple[Any, ...]]] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for shard in range(self.directory.shards):
            self.handles[shard] = self.directory.handle(shard)
            self.kept[shard] = {}
            self.acknowledged.setdefault(shard, 0)

    def route(self, unique: Unique, shard: int) -> tuple[RowIds, NDArray[np.uint32], list[NDArray[np.bool_]]]:
        """Return what a shard has of a batch: its rows, multiplicities, and where they are in each table."""
        counts, rows, times, masks = [], [], [], []
        for table in self.spec.tables:
            begin, end = self.spec.row_range(table.name, shard)
            mask = (unique.rows[table.name] >= begin) & (unique.rows[table.name] < end)
            masks.append(mask)
            counts.append(int(mask.sum()))
            rows.append((unique.rows[table.name][mask] - begin).astype(np.int32))
            times.append(unique.times[table.name][mask])
        ids = RowIds(np.array(counts, np.int64), np.concatenate(rows))
        return ids, np.concatenate(times).astype(np.uint32), masks

    def route_nothing(self) -> RowIds:
        """Return no rows."""
        return RowIds(np.zeros(len(self.spec.tables), np.int64), np.zeros(0, np.int32))

    @staticmethod
    def nothing(spec: ClusterSpec) -> tuple[RowIds, NDArray[np.float32], NDArray[np.uint32]]:
        """Return an update of no rows."""
        rows = RowIds(np.zeros(len(spec.tables), np.int64), np.zeros(0, np.int32))
        return rows, np.zeros(0, np.float32), np.zeros(0, np.uint32)

    def tag(self, shard: int, step: int) -> Tag:
        """Return the tag of a call."""
        return Tag(self.generation, step, self.rank, self.handles[shard].incarnation)

    def look_up(self, step: int) -> dict[str, NDArray[np.float32]]:
        """Return the unique rows of this rank's batch of a step, by table."""
        unique = Unique.of(batch_of(self.spec, step, self.rank))
        found = {
            t.name: np.full((len(unique.rows[t.name]), t.embedding_dim), np.nan, np.float32)
            for t in self.spec.tables
        }
        for shard in self.handles:
            ids, _, masks = self.route(unique, shard)
            flat = self._certain(
                shard, lambda s=shard, i=ids: self.handles[s].lookup(self.tag(s, step), i).result(TIMEOUT)
            )
            at = 0
            for table, mask in zip(self.spec.tables, masks, strict=True):
                n = int(mask.sum()) * table.embedding_dim
                found[table.name][mask] = flat[at : at + n].reshape(-1, table.embedding_dim)
                at += n
        return found

    def send(
        self,
        step: int,
        rows: dict[str, NDArray[np.float32]],
        told: Callable[[int, Any], object] = lambda *_: None,
    ) -> None:
        """Send the gradients of looked-up rows to every shard; `told`: of a shard and what it is sent."""
        unique = Unique.of(batch_of(self.spec, step, self.rank))
        gradients = {name: gradient_of(values, step, self.rank) for name, values in rows.items()}
        for shard in self.handles:
            ids, times, masks = self.route(unique, shard)
            flat = [
                gradients[table.name][mask].reshape(-1)
                for table, mask in zip(self.spec.tables, masks, strict=True)
            ]
            self.kept[shard][step] = (ids, np.concatenate(flat).astype(np.float32), times)
            told(shard, self.kept[shard][step])
            self._certain(shard, lambda s=shard: self.resend(s))

    def resend(self, shard: int) -> None:
        """Send what is not acknowledged, the oldest first."""
        for step in sorted(self.kept[shard]):
            ack = self.handles[shard].update(self.tag(shard, step), *self.kept[shard][step]).result(TIMEOUT)
            self.acknowledged[shard] = max(self.acknowledged[shard], ack.applied)
        for step in [s for s in self.kept[shard] if s <= self.acknowledged[shard]]:
            del self.kept[shard][step]

    def _certain(self, shard: int, call: Any) -> Any:
        while True:
            try:
                return call()
            except ShardLost:
                with suppress(ShardLost):  # that life may end, too: the next call says so
                    self.reconnect(shard)

    def reconnect(self, shard: int) -> None:
        """Go on with the next life of a shard: what was acknowledged is lost, the rest is sent again."""
        after = self.handles[shard].incarnation
        self.handles[shard] = self.directory.reconnect(shard, TIMEOUT, after=after)
        first = self.acknowledged[shard] + 1
        resumed = (
            self.handles[shard]
            .call("resume", self.generation, self.handles[shard].incarnation, self.rank, self.ranks, first)
            .result(TIMEOUT)
        )
        self.lost.append((shard, resumed.lost))
        self.resend(shard)

    def step(self, step: int) -> None:
        """Train one step."""
        self.send(step, self.look_up(step))


def train(trainers: Sequence[Trainer], first: int, last: int) -> None:
    """Train steps `first` to `last` with all ranks, in this thread: all look up, then all send."""
    for step in range(first, last + 1):
        found = [trainer.look_up(step) for trainer in trainers]
        for trainer, rows in zip(trainers, found, strict=True):
            trainer.send(step, rows)


def cluster_state(directory: ShardDirectory, spec: ClusterSpec, name: str) -> dict[str, Any]:
    """Return all there is of a table, put together from its shards."""
    parts = [directory.handle(s).call("rows", name).result(TIMEOUT) for s in range(directory.shards)]
    parts = sorted((p for p in parts if p["begin"] is not None), key=lambda part: part["begin"])
    return {
        key: None if parts[0][key] is None else np.concatenate([part[key] for part in parts])
        for key in ("weight", "state", "count", "dirty")
    }


def check_same(
    directory: ShardDirectory,
    spec: ClusterSpec,
    local: LocalTables,
    keys: Sequence[str] = ("weight", "state"),
) -> None:
    """Assert that the shards hold what `local` holds, bit for bit."""
    for table in spec.tables:
        got, expected = cluster_state(directory, spec, table.name), local.state(table.name)
        for key in keys:
            if expected[key] is None:
                assert got[key] is None
                continue
            assert got[key].dtype == expected[key].dtype
            assert np.array_equal(got[key].view(np.uint8), expected[key].view(np.uint8)), (table.name, key)


class Job:
    """Some trainers, their shards in threads, and the coordinator."""

    def __init__(self, path: Path, *, ranks: int = 1, **options: Any) -> None:
        self.spec: ClusterSpec = spec_of(path, ranks=ranks, **options)
        store = CheckpointStore(path)
        self.coordinator = Coordinator(
            store, self.spec.schema, self.spec.placement, run_id="run", timeout=TIMEOUT
        )
        self.directory = LocalDirectory(self.spec)
        self.trainers = [Trainer(self.directory, self.spec, rank=r, ranks=ranks) for r in range(ranks)]
        self.generation = 1

    @property
    def handles(self) -> list[Any]:
        return [self.directory.handle(shard) for shard in range(self.spec.shards)]

    def save(self, step: int, kind: SaveKind = "delta", **options: Any) -> GlobalSave:
        """Cut after `step`, which is applied or to come, and commit."""
        cut = self.coordinator.begin(
            self.handles, generation=self.generation, step=step, kind=kind, **options
        )
        return self.coordinator.finish(cut, {**DENSE, "step": np.array([step])})

    def close(self) -> None:
        self.directory.close()
        self.coordinator.close()
