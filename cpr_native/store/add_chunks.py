"""Rows of a snapshot as parts of a save, chunk by chunk: for weights that are not written as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cpr_native._native import Snapshot
from cpr_native.store.segment import SegmentPart

_TIMEOUT = 0.1  # seconds to wait for a chunk before the parts are written, which gives memory back


class _Save(Protocol):
    @property
    def shards(self) -> int: ...
    def add(self, part: SegmentPart) -> None: ...
    def flush(self) -> None: ...


def add_chunks(save: _Save, snapshot: Snapshot, names: Sequence[str]) -> tuple[int, list[int]]:
    """Adds all rows of a snapshot whose tables are called `names`; see `Save.add_snapshot`."""
    rows, lookups = 0, [0] * save.shards
    while True:
        try:
            chunk = snapshot.next_chunk(_TIMEOUT)
        except TimeoutError:
            save.flush()
            continue
        if chunk is None:
            return rows, lookups
        rows += len(chunk.rows)
        lookups[chunk.shard] += int(chunk.count.sum(dtype=np.int64))
        save.add(
            SegmentPart(
                shard=chunk.shard,
                table=names[chunk.table],
                rows=chunk.rows,
                weight=chunk.weight,
                state=chunk.state,
                count=chunk.count,
                close=chunk.close,
            )
        )
        del chunk  # its memory is wanted for the next
