"""What a policy would have saved of a model in training: its saves in memory, beside any number of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, TableSpec
from cpr_native._tensor import describe
from cpr_native.config import Trackers
from cpr_native.data import ClickBatch
from cpr_native.policy import Policy, SaveKind, clears_dirty
from cpr_study.paper_list import PaperSsu
from cpr_study.trainee import Trainee

_DIRTY = np.uint32(1 << 30)
_LANES = 32  # of the engine's sums of squares
Lost = tuple[int, int, int]
"""A table and its rows [begin, end)."""


@dataclass(kw_only=True)
class SavedTable:
    """Rows of one table as last saved, and their books at that moment.

    `weight` [rows, dim], `state` [rows]; `count`, `drift`: the trainee's since its start; `exact_count`:
    likewise at the last base or delta; `dirty`: stayed dirty over a partial recovery.
    """

    weight: NDArray[np.float32]
    state: NDArray[np.float32]
    count: NDArray[np.uint32]
    exact_count: NDArray[np.uint32]
    drift: NDArray[np.float32]
    dirty: NDArray[np.bool_]


@dataclass(frozen=True)
class _Ranking:
    number: int
    shadow: Shadow
    trainee: Trainee

    def changes(self, table: int) -> NDArray[np.float32]:
        """L2 distance of each row's weight from its last saved copy, [rows]."""
        return self.shadow.distances(self.trainee, table)

    def listed(self, table: int) -> NDArray[np.bool_]:
        """Which rows the paper's list holds, [rows]."""
        return self.shadow.listed(table)


class Shadow:
    """The saves that `policy` makes of a trainee every `interval` samples, one at the start.

    The rows are chosen by the policy through the engine's own selections, on a collection of the trainee's
    tables with one column, which has the trackers that the policy asks. `sampling`: trackers of an SSU
    policy, which alone are fed step by step; other trackers are set when a save is due.
    """

    def __init__(
        self, policy: Policy, trainee: Trainee, *, interval: int, seed: int, sampling: Trackers | None = None
    ) -> None:
        self.policy = policy
        self.interval = interval
        self.bytes_written = 0
        self.rows_written = 0
        self.saves = 0
        self.saved_samples = 0
        self._sampling = sampling
        engine = trainee.engine
        self._ranker = Collection(
            [_narrow(spec, sampling or Trackers(ssu=False, drift=True)) for spec in engine.tables],
            list(range(len(engine.tables))),
            optimizer="sgd",
            learning_rate=0.0,
            seed=seed,
        )
        self._list = policy.list_of(self._ranker.tables) if isinstance(policy, PaperSsu) else None
        dense = sum(4 * p.numel() for p in trainee.model.dense_parameters())
        self._dense_bytes = 2 * dense  # Adagrad keeps one number a parameter
        self.tables = [_unsaved(trainee, table) for table in trainee.tables]
        self._save(trainee, "base", 0)
        self.bytes_written = self.rows_written = 0

    def trained(self, batch: ClickBatch) -> None:
        """Hear of a step on `batch`."""
        if self._list is not None:
            self._list.trained(batch)
        if self._sampling is None:
            return
        bags = len(batch)
        out = np.empty((bags, len(self.tables)), np.float32)
        looked_up = self._ranker.lookup(
            describe(batch.ids), describe(batch.offsets), None, describe(out), threads=1, keep=True
        )
        assert looked_up is not None
        out.fill(0.0)
        self._ranker.update(looked_up, describe(out), threads=1)

    def passed(self, trainee: Trainee, before: int, samples: int) -> None:
        """Save if one became due between `before` and `samples` trained samples."""
        if samples // self.interval > before // self.interval:
            self._save(trainee, self.policy.kind(self.saves), samples)

    def _save(self, trainee: Trainee, kind: SaveKind, samples: int) -> None:
        for table in trainee.tables:
            self._set_trackers(trainee, table)
        ranking = _Ranking(self.saves, self, trainee)
        selections = self.policy.selections(self._ranker.tables, kind, ranking)
        snapshot = self._ranker.begin(selections, clears_dirty=clears_dirty(kind), blocking=True)
        states: dict[int, NDArray[np.float32]] = {}
        for chunk in snapshot:
            table, rows = chunk.table, np.array(chunk.rows)
            chunk.close()
            state = states.setdefault(table, trainee.state(table))
            self._enter(trainee, table, rows, state, exact=clears_dirty(kind))
        snapshot.commit()
        self.bytes_written += self._dense_bytes
        self.saves += samples > 0
        if kind == "base":
            self.saved_samples = samples

    def _enter(
        self, trainee: Trainee, table: int, rows: NDArray[np.int64], state: NDArray[np.float32],
        *, exact: bool,
    ) -> None:  # fmt: skip
        saved, weight = self.tables[table], trainee.weight(table)
        saved.weight[rows] = weight[rows]
        saved.state[rows] = state[rows]
        saved.count[rows] = trainee.engine.counts(table)[rows]
        saved.drift[rows] = trainee.engine.drift(table)[rows]
        if exact:
            saved.exact_count[rows] = saved.count[rows]
            saved.dirty[rows] = False
        if self._list is not None:
            self._list.forget(table, 0, len(weight))
        self.rows_written += len(rows)
        self.bytes_written += len(rows) * (8 + 4 * weight.shape[1] + 4 + 4)  # id, weight, state, count

    def _set_trackers(self, trainee: Trainee, table: int) -> None:
        if self._sampling is not None:
            return
        saved, counts = self.tables[table], trainee.engine.counts(table)
        words = counts - saved.count
        words |= np.where(saved.dirty | (counts != saved.exact_count), _DIRTY, np.uint32(0))
        drift = np.maximum(trainee.engine.drift(table) - saved.drift, np.float32(0))
        self._ranker.set_trackers(table, describe(words))
        self._ranker.set_drift(table, describe(drift))

    def distances(self, trainee: Trainee, table: int) -> NDArray[np.float32]:
        """L2 distance of each row from its saved copy, [rows], to the engine's bits (docs/numerics.md)."""
        squares = (trainee.weight(table) - self.tables[table].weight) ** 2
        lanes = np.zeros((len(squares), _LANES), np.float32)
        for first in range(0, squares.shape[1], _LANES):
            part = squares[:, first : first + _LANES]
            lanes[:, : part.shape[1]] += part
        while lanes.shape[1] > 1:
            lanes = lanes[:, ::2] + lanes[:, 1::2]
        return np.sqrt(lanes[:, 0])

    def loss(self, trainee: Trainee, lost: Sequence[Lost]) -> dict[str, float]:
        """What losing the rows `lost` now would cost, by every measure; sums over these rows."""
        total = {"lookups": 0.0, "drift": 0.0, "distance": 0.0, "count_distance": 0.0, "rows_changed": 0.0}
        for table, begin, end in lost:
            saved = self.tables[table]
            counts = trainee.engine.counts(table)[begin:end].astype(np.float64)
            since = counts - saved.count[begin:end]
            distance = self.distances(trainee, table)[begin:end].astype(np.float64)
            drift = trainee.engine.drift(table)[begin:end].astype(np.float64) - saved.drift[begin:end]
            total["lookups"] += float(since.sum())
            total["drift"] += float(np.maximum(drift, 0.0).sum())
            total["distance"] += float(distance.sum())
            total["count_distance"] += float((counts * distance).sum())
            total["rows_changed"] += float(np.count_nonzero(since))
        return total

    def recover(self, trainee: Trainee, lost: Sequence[Lost], *, state: str = "restored") -> None:
        """Put the rows `lost` back to their saved copies; their trackers restart.

        `state`: "restored" with the row, "zeroed", or "kept" as it is.
        """
        for table, begin, end in lost:
            saved = self.tables[table]
            states = {"restored": saved.state, "zeroed": np.zeros_like(saved.state)}
            counts = trainee.engine.counts(table)[begin:end]
            saved.dirty[begin:end] |= counts != saved.exact_count[begin:end]
            trainee.load(table, begin, end, saved.weight, states.get(state, trainee.state(table)))
            saved.count[begin:end] = saved.exact_count[begin:end] = 0
            saved.drift[begin:end] = 0.0
            self._ranker.clear_trackers(table, begin, end, dirty=False)
            if self._list is not None:
                self._list.forget(table, begin, end)

    def listed(self, table: int) -> NDArray[np.bool_]:
        """Which rows the paper's list holds, [rows]."""
        assert self._list is not None
        return self._list.mask(table, len(self.tables[table].weight))


def _narrow(spec: Any, trackers: Trackers) -> TableSpec:
    return TableSpec(
        name=spec.name, num_embeddings=spec.num_embeddings, embedding_dim=1, init_min=0.0, init_max=0.0,
        drift=trackers.drift, ssu=trackers.ssu,
        ssu_fraction=trackers.ssu_fraction, ssu_period=trackers.ssu_period,
    )  # fmt: skip


def _unsaved(trainee: Trainee, table: int) -> SavedTable:
    weight = trainee.weight(table)
    rows = len(weight)
    return SavedTable(
        weight=np.array(weight), state=trainee.state(table), count=np.zeros(rows, np.uint32),
        exact_count=np.zeros(rows, np.uint32), drift=np.zeros(rows, np.float32),
        dirty=np.zeros(rows, np.bool_),
    )  # fmt: skip


def lost_rows(tables: Sequence[int], shards: int, failed: Sequence[int]) -> list[Lost]:
    """Return the rows of `failed` of `shards` contiguous shards, by table; `tables`: rows of each."""
    ranges = []
    for table, rows in enumerate(tables):
        block = -(-rows // shards)
        for shard in failed:
            begin, end = min(rows, shard * block), min(rows, (shard + 1) * block)
            if begin < end:
                ranges.append((table, begin, end))
    return ranges
