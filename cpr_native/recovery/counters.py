"""Lookups of an engine on a device, by shard, as its counters have them: a step tells the host nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpr_native.device import DeviceEngine
from cpr_native.errors import SnapshotInProgress
from cpr_native.store import ShardRows


def bounds_of(at: ShardRows, rows: int, shards: int) -> list[int]:
    """Return where the rows of each shard begin in a table of `rows` rows, and the end: [shards + 1]."""
    if isinstance(at, int):
        return [min(shard * at, rows) for shard in range(shards + 1)]
    first, spread = at
    begins = (-((first - shard) * rows // spread) for shard in range(shards + 1))
    return [min(max(begin, 0), rows) for begin in begins]


class DeviceCounters:
    """The lookups of one engine that no commit contains, by shard, as they were when they were last read.

    `bounds`: of each table, see `bounds_of`; None for one without a counter, which has none.
    """

    def __init__(self, engine: DeviceEngine, bounds: Sequence[Sequence[int] | None], shards: int) -> None:
        self._engine = engine
        self._bounds = list(bounds)
        self.open = np.zeros(shards, np.int64)

    def read(self) -> int:
        """Read the counters, and return how many lookups have come since the last time; waits for the device.

        Returns 0 while a snapshot is uncommitted, which holds a part of them: they are found later.
        """
        found = np.zeros_like(self.open)
        try:
            for table, bounds in enumerate(self._bounds):
                if bounds is not None:
                    found += self._engine.lookups(table, bounds)
        except SnapshotInProgress:
            return 0
        new = int((found - self.open).sum())
        self.open = found
        return max(new, 0)

    def saved(self, counts: NDArray[np.int64]) -> None:
        """Take off the counts that a commit contains, [shards]."""
        self.open = self.open - counts

    def forget(self, shards: Sequence[int] | slice) -> None:
        """Note that the counters of `shards` began anew."""
        self.open[shards] = 0
