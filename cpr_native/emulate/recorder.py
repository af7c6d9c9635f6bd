"""Records which rows the commits of an emulated run hold, by reading the files that it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.data import ClickBatch
from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.rows import Group, RowAge, RowsSaved
from cpr_native.policy import clears_dirty, prioritised_tables
from cpr_native.recovery import RecoveryReport, SaveReport
from cpr_native.shard import RowRange, Shard
from cpr_native.store import CheckpointStore
from cpr_native.store.directory import Directory
from cpr_native.store.stored import stored_rows


@dataclass(frozen=True, kw_only=True)
class _Table:
    """What a policy reads of a table; rows of one length."""

    num_embeddings: int
    embedding_dim: int = 1


class RowRecorder:
    """What became of every row of one run: times saved, newest copy on disk, lookups.

    Holds 12 bytes a row. Nothing of it is in the training step's engine or in the saver.

    Args:
        store: the run's, which keeps every commit.
        sizes: rows of its tables, in the order of the batches' features, one feature each.
        clock: of the run.
    """

    def __init__(self, store: CheckpointStore, sizes: Sequence[int], clock: VirtualClock) -> None:
        self._directory = Directory(store.path)
        self._clock = clock
        self._tables = [_Table(num_embeddings=size) for size in sizes]
        self._begins = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        rows = int(self._begins[-1])
        self._times = np.zeros(rows, np.uint32)
        self._lookups = np.zeros(rows, np.uint32)
        self._copies = np.zeros(rows, np.uint32)
        # Samples trained at the copies that `_copies` numbers; the first are the initial rows.
        self._cuts = [0]
        self._trained = 0
        self._seen = 0

    def trains(self, batch: ClickBatch, samples: int) -> None:
        """Count the lookups of a batch trained after `samples` samples, unless it is trained again."""
        if samples < self._trained:
            return
        self._trained = samples + len(batch)
        rows = batch.ids.numpy().reshape(len(self._tables), -1) + self._begins[:-1, None]
        np.add.at(self._lookups, rows.reshape(-1), np.uint32(1))

    def saved(self, saves: Sequence[SaveReport]) -> None:
        """Enter what was committed since the last call.

        Args:
            saves: all commits of the run so far.

        Raises:
            CorruptionError: a commit or the ids of its rows are damaged.
            OSError: a file can't be read.
        """
        for save in saves[self._seen :]:
            self._enter(save)
        self._seen = len(saves)

    def _enter(self, save: SaveReport) -> None:
        copy = len(self._cuts)
        self._cuts.append(save.samples)
        if clears_dirty(save.kind):
            self._copies[:] = copy
        whole, _ = self._directory.whole.load(save.sequence)
        begins = {
            table.name: int(begin) for table, begin in zip(whole.schema.tables, self._begins, strict=False)
        }
        for shard, ref in whole.commits.items():
            chain = self._directory.shard(shard)
            commit = chain.follow(ref)
            for record in commit.segments:
                path = chain.segment_path(record.name)
                with stored_rows(path, record, commit.schema, commit.placement, shard) as tables:
                    for stored in tables:
                        rows = stored.ids() + begins[stored.table]
                        self._times[rows] += 1
                        self._copies[rows] = copy

    def age(self, recovery: RecoveryReport, shards: Sequence[Shard]) -> RowAge:
        """How old the rows were that `recovery` sent back; to be asked before the next save.

        Args:
            recovery: just made.
            shards: all shards of the run.
        """
        if recovery.mode == "full":
            return self._ages([recovery.lost_samples], [len(self._times)], [int(self._lookups.sum())])
        ranges = [row_range for number in recovery.shards for row_range in shards[number].ranges]
        parts = [self._slice(row_range) for row_range in ranges]
        rows, lookups = _counts(parts, self._copies, self._lookups)
        ages: dict[int, NDArray[np.int64]] = {}
        for cut, *found in zip(self._cuts, rows, lookups, strict=False):
            if found[0]:
                age = recovery.samples - cut
                ages[age] = ages.get(age, np.zeros(2, np.int64)) + found
        ordered = sorted(ages)
        return self._ages(ordered, *([int(ages[age][part]) for age in ordered] for part in range(2)))

    def _ages(self, samples: Sequence[int], rows: Sequence[int], lookups: Sequence[int]) -> RowAge:
        hours = tuple(self._clock.hours(age) for age in samples)
        return RowAge(samples=tuple(samples), hours=hours, rows=tuple(rows), lookups=tuple(lookups))

    def _slice(self, row_range: RowRange) -> slice:
        begin = int(self._begins[row_range.table])
        return slice(begin + row_range.begin, begin + row_range.end)

    def times_saved(self) -> tuple[RowsSaved, ...]:
        """How often rows were saved until now, for each group that has tables."""
        chosen = set(prioritised_tables(self._tables))
        others = set(range(len(self._tables))) - chosen
        groups: tuple[tuple[Group, set[int]], ...] = (("prioritised", chosen), ("small", others))
        return tuple(self._group(name, sorted(members)) for name, members in groups if members)

    def _group(self, name: Group, members: Sequence[int]) -> RowsSaved:
        parts = [slice(int(self._begins[table]), int(self._begins[table + 1])) for table in members]
        rows, lookups = _counts(parts, self._times, self._lookups)
        (times,) = np.nonzero(rows)
        return RowsSaved(
            group=name,
            tables=len(members),
            times=tuple(times.tolist()),
            rows=tuple(rows[times].tolist()),
            lookups=tuple(lookups[times].tolist()),
        )


def _counts(
    parts: Sequence[slice], values: NDArray[np.uint32], weights: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many elements of `parts` have each value, and the sums of their weights, both [max + 1]."""
    length = int(max((values[part].max(initial=0) for part in parts), default=0)) + 1
    counts, sums = np.zeros((2, length), np.int64)
    for part in parts:
        counts += np.bincount(values[part], minlength=length)
        # Sums of whole numbers below 2**53 are exact in float64.
        sums += np.bincount(values[part], weights=weights[part], minlength=length).astype(np.int64)
    return counts, sums
