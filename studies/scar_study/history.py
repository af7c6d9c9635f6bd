"""What a policy has last saved of a run, at each of its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, TableSpec
from cpr_native._tensor import describe
from cpr_native.policy import Policy, clears_dirty
from scar_study.blocks import BlockTable, bounds
from scar_study.trunk import Trunk

Distance = Literal["l2", "l1", "tv"]


@dataclass(frozen=True)
class _Ranking:
    number: int
    engine: Collection
    distance: Distance

    def changes(self, table: int) -> NDArray[np.float32]:
        """Distance of each block from its copy as last saved."""
        return self.engine.changes(table, self.distance)


def saved_at(trunk: Trunk, policy: Policy, interval: int) -> NDArray[np.int32]:
    """Return after which iteration each block was last saved, [K + 1, blocks]: row T is what is known then.

    Everything is saved at the start, then `policy` saves every `interval` iterations, through the engine: its
    distances, its selections. Of aligned tables the first is ranked, the others follow. What is due after an
    iteration is saved before that iteration's failure.
    """
    tables = trunk.tables[:1] if trunk.workload.aligned else trunk.tables
    engine = _engine(tables)
    for table in range(len(tables)):
        _write(engine, table, trunk, 0)
        engine.keep_saved(table, True)
    ends = bounds(tables)
    history = np.zeros((trunk.iterations + 1, ends[-1].stop), np.int32)
    for iteration in range(1, trunk.iterations + 1):
        history[iteration] = history[iteration - 1]
        if iteration % interval:
            continue
        for table in range(len(tables)):
            _write(engine, table, trunk, iteration)
            drift = _drift(trunk, table, history[iteration, ends[table]], iteration)
            engine.set_drift(table, describe(drift))
        number = iteration // interval - 1
        kind = policy.kind(number)
        selections = policy.selections(engine.tables, kind, _Ranking(number, engine, trunk.workload.distance))
        snapshot = engine.begin(selections, clears_dirty=clears_dirty(kind), blocking=True)
        for chunk in snapshot:
            history[iteration, ends[chunk.table]][chunk.rows] = iteration
            chunk.close()
        snapshot.commit()
    return np.tile(history, len(trunk.tables) // len(tables))


def _engine(tables: Sequence[BlockTable]) -> Collection:
    specs = [
        TableSpec(
            name=f"{number}", num_embeddings=table.rows, embedding_dim=table.dim, init_min=0.0, init_max=0.0,
            drift=True, ssu=False,
        )
        for number, table in enumerate(tables)
    ]  # fmt: skip
    return Collection(specs, list(range(len(specs))), optimizer="sgd", learning_rate=0.0, seed=0)


def _write(engine: Collection, table: int, trunk: Trunk, iteration: int) -> None:
    blocks = trunk.tables[table]
    engine.weight(table)[:] = blocks.of(trunk.weights[blocks.name][iteration])
    engine.mark_dirty(table)


def _drift(trunk: Trunk, table: int, since: NDArray[np.int32], now: int) -> NDArray[np.float32]:
    """Return the sum of the lengths of each block's steps since it was saved."""
    blocks = trunk.tables[table]
    first = int(since.min())
    iterates = blocks.of(trunk.weights[blocks.name][first : now + 1])
    lengths = np.sqrt(np.square(np.diff(iterates, axis=0)).sum(-1))
    travelled = np.cumsum(np.concatenate([np.zeros((1, blocks.rows), np.float32), lengths]), axis=0)
    start = np.take_along_axis(travelled, (since - first)[None], axis=0)[0]
    drift: NDArray[np.float32] = np.maximum(travelled[-1] - start, 0.0).astype(np.float32)
    return drift
