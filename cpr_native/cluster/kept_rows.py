"""Rows as they were before an update, for the process that follows one that died in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection
from cpr_native._tensor import describe
from cpr_native.cluster.scratch import Scratch
from cpr_native.cluster.tables import RowGradients, ShardTables


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Rows of one table as they were: global ids, int64 [n], weight and state as `load_rows` takes them."""

    engine: Collection
    table: int
    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None

    @classmethod
    def room(
        cls, engine: Collection, table: int, rows: NDArray[np.int64], scratch: Scratch | None = None
    ) -> KeptRows:
        """Return memory for `rows`, of `scratch` if there is one."""
        take = Scratch().take if scratch is None else scratch.take
        weights = engine.weight(table)
        weight = take((len(rows), weights.shape[1]), weights.dtype)
        columns = engine.state_columns(table)
        shape = (len(rows),) if columns == 1 else (len(rows), columns)
        return cls(engine, table, rows, weight, take(shape, np.float32) if columns else None)

    @classmethod
    def of(
        cls, engine: Collection, table: int, rows: NDArray[np.int64], scratch: Scratch, threads: int
    ) -> KeptRows:
        """Return `rows` as they are now, valid until `scratch` is cleared."""
        kept = cls.room(engine, table, rows, scratch)
        state = None if kept.state is None else describe(kept.state)
        engine.copy_rows(table, describe(rows), describe(kept.weight), state, threads=threads)
        return kept

    def put_back(self) -> None:
        """Make the rows what they were; they become dirty."""
        state = None if self.state is None else describe(self.state)
        self.engine.put_rows(self.table, describe(self.rows), describe(self.weight), state)

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """All of it."""
        return [self.rows, self.weight, *([] if self.state is None else [self.state])]


def rows_to_write(
    tables: ShardTables, updates: Sequence[RowGradients], scratch: Scratch
) -> list[tuple[int, KeptRows]]:
    """Return copies of the rows that `tables.update(updates)` would write, with their table in the spec.

    They are valid until the next call with the same `scratch`.
    """
    scratch.clear()
    found = []
    offsets = [update.rows.offsets for update in updates]
    for engine, table, index in tables.members:
        rows = [
            update.rows.rows[of[index] : of[index + 1]] for update, of in zip(updates, offsets, strict=True)
        ]
        local = rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))
        if len(local):
            ids = local.astype(np.int64) + engine.tables[table].row_offset
            found.append((index, KeptRows.of(engine, table, ids, scratch, tables.threads)))
    return found


def parse(tables: ShardTables, counts: Sequence[tuple[int, int]], data: Sequence[bytes]) -> list[KeptRows]:
    """Return the rows whose `arrays` are `data`; `counts`: table in the spec and number of rows of each.

    Raises ValueError for others.
    """
    homes = {index: (engine, table) for engine, table, index in tables.members}
    found, at = [], 0
    for index, count in counts:
        if index not in homes:
            raise ValueError(f"rows of table {index}, of which the shard has none")
        kept = KeptRows.room(*homes[index], np.empty(count, np.int64))
        for array in kept.arrays:
            if at >= len(data) or len(data[at]) != array.nbytes:
                raise ValueError(f"rows of table {index}: expected {array.nbytes} bytes")
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data[at], np.uint8)
            at += 1
        found.append(kept)
    return found
