"""Rows as they lie in segment files, on their way to memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.schema import CollectionSchema, Placement
from cpr_native.store.segment_reader import ARRAYS, OpenSegment


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Rows of one table, in fresh memory; see `SegmentPart`."""

    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """`count` rows of one table in a segment of `shard`, still in the file, which was checked once.

    All ways to them check again what they read, and that it is of rows [begin, end).
    """

    segment: OpenSegment
    shard: int
    table: str
    count: int
    begin: int
    end: int

    def read(self) -> TableRows:
        """Returns the rows; raises CorruptionError, OSError."""
        has_state = f"{self.table}.state" in self.segment.tensors
        return TableRows(
            rows=self.ids(), weight=self._array("weight"), state=self._array("state") if has_state else None
        )

    def ids(self) -> NDArray[np.int64]:
        """Returns the global ids of the rows, [count], in fresh memory; raises what `read` raises."""
        rows = self._array("rows")
        with self._naming_rows():
            seen = np.zeros((self.end - self.begin + 7) // 8, np.uint8)
            _native.mark_rows(describe(rows), self.begin, self.end, describe(seen))
        return rows

    def _array(self, kind: str) -> NDArray[Any]:
        name = f"{self.table}.{kind}"
        tensor = self.segment.tensors[name]
        data = np.empty(tensor.size, np.uint8)
        section = (self.segment.descriptor, tensor.begin, tensor.size, describe(data))
        self.segment.check_crc(name, _native.read_sections([section], 1)[0])
        return data.view(ARRAYS[tensor.code]).reshape(tensor.shape)

    def load(self, engine: _native.Collection, table: int, *, dirty: bool, threads: int) -> None:
        """Writes the rows into table number `table` of `engine`, block by block from the file.

        dirty: they end up dirty. Raises what `read` raises, with some rows written.
        """
        tensors = self.segment.tensors
        names = [f"{self.table}.{kind}" for kind in ("rows", "weight", "state")]
        ids, weight, state = (tensors[name].begin if name in tensors else 0 for name in names)
        with self._naming_rows():
            try:
                crcs = _native.load_stored_rows(
                    engine,
                    table,
                    self.segment.descriptor,
                    os.fspath(self.segment.path),
                    self.count,
                    (ids, weight, state),
                    (self.begin, self.end),
                    dirty,
                    threads,
                )
            except OSError as error:
                files.raise_error(self.segment.path, error)
        for name, crc in zip(names, crcs, strict=True):
            if name in tensors:
                self.segment.check_crc(name, crc)

    @contextmanager
    def _naming_rows(self) -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            raise CorruptionError(
                f"{self.segment.path}: table {self.table!r}: shard {self.shard}: {error}"
            ) from None


@contextmanager
def stored_rows(
    path: Path, record: SegmentRecord, schema: CollectionSchema, placement: Placement, shard: int
) -> Iterator[list[StoredRows]]:
    """Opens a segment of `shard`; gives the rows of each table in it, valid inside the block.

    Raises CorruptionError (header, dtype, shape), OSError.
    """
    with OpenSegment(path, record) as segment:
        segment.check_rows(record, schema)
        found = []
        for table, count in record.rows.items():
            begin, end = placement.row_range(schema, table, shard)
            found.append(
                StoredRows(segment=segment, shard=shard, table=table, count=count, begin=begin, end=end)
            )
        yield found
