"""The rows as last saved, in memory, for a policy that ranks rows by how far they are from that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.modules._plan import Engine
from cpr_native.policy import Policy, Scar, prioritised_tables
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.shard import Shard


@dataclass(frozen=True)
class Priorities:
    """What a policy may ask at a save; see `cpr_native.policy.Ranking`.

    `seen`: is told each table's distances, as the policy is.
    """

    number: int
    last_saved: LastSaved
    seen: Callable[[int, NDArray[np.float32]], None] | None = None

    def changes(self, table: int) -> NDArray[np.float32]:
        """Return the distance of each row from its copy as last saved, [rows]; ValueError without one."""
        changes = self.last_saved.changes(table)
        if self.seen is not None:
            self.seen(table, changes)
        return changes


class LastSaved:
    """The copy of the prioritised tables that `Scar` needs; of nothing for other policies.

    It takes as much memory as the weights of these tables. The engine keeps it: every row of a save is
    entered, and counts as never saved when the save fails. Called by the training thread, with no save in
    flight.
    """

    def __init__(self, tables: TrainedCollection, policy: Policy) -> None:
        homes = [(part.engine, table) for part in tables.parts for table in range(len(part.engine.tables))]
        specs = tables.engine.tables
        chosen = prioritised_tables(specs, policy.row_share) if isinstance(policy, Scar) else []
        self._kept: dict[int, tuple[Engine, int]] = {table: homes[table] for table in chosen}
        self._distance = policy.distance if isinstance(policy, Scar) else "l2"

    def keep(self) -> None:
        """Begin, or begin anew, with all rows as they are now."""
        for engine, index in self._kept.values():
            engine.keep_saved(index, True)

    def free(self) -> None:
        """Give the memory back."""
        for engine, index in self._kept.values():
            engine.keep_saved(index, False)

    def restored(self, shards: Iterable[Shard]) -> None:
        """Take the rows of `shards` as they are now: they were restored."""
        for row_range in (row_range for shard in shards for row_range in shard.ranges):
            if row_range.table in self._kept:
                engine, index = self._kept[row_range.table]
                engine.refresh_saved(index, row_range.begin, row_range.end)

    def changes(self, table: int) -> NDArray[np.float32]:
        """Return the policy's distance of each row's weight from the copy, [rows]; ValueError without one."""
        engine, index = self._kept[table]
        return engine.changes(index, self._distance, threads=len(os.sched_getaffinity(0)))
