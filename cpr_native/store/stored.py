"""Rows as they lie in segment files, on their way to memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files, system
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.native_tables import NativeTables
from cpr_native.store.placement import Placement
from cpr_native.store.quantise import QuantisedRows, bits_of, dequantise
from cpr_native.store.schema import CollectionSchema, TableSchema
from cpr_native.store.segment_reader import ARRAYS, OpenSegment

_KINDS = ("rows", "weight", "state")


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Rows of one table, in fresh memory; see `SegmentPart`."""

    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """`count` rows of one table in a segment of `shard`, still in the file, which was checked once.

    `priority`: of a priority commit. All ways to them, `load_stored` too, check again what they read, and
    that it is of rows [begin, end). `layout`: the table in the schema.
    """

    segment: OpenSegment
    shard: int
    table: str
    count: int
    begin: int
    end: int
    priority: bool
    layout: TableSchema

    @property
    def _owner(self) -> str:
        return f"table {self.table!r}: shard {self.shard}"

    def read(self) -> TableRows:
        """Returns the rows; raises CorruptionError, OSError."""
        has_state = f"{self.table}.state" in self.segment.tensors
        state = self._array("state") if has_state else None
        return TableRows(rows=self.ids(), weight=self._weight(), state=state)

    @property
    def quantised(self) -> bool:
        """Whether weights are codes, which stand for them within a bound; see `quantise.py`."""
        return f"{self.table}.weight_range" in self.segment.tensors

    def _weight(self) -> NDArray[Any]:
        weight = self._array("weight")
        if not self.quantised:
            return weight
        bits = bits_of(self.layout, weight.shape[1])
        assert bits is not None
        rows = QuantisedRows(weight, self._array("weight_range"), self._array("weight_bound"))
        return dequantise(rows, self.layout, bits)

    def ids(self) -> NDArray[np.int64]:
        """Returns the global ids of the rows, [count], in fresh memory; raises what `read` raises."""
        rows = self._array("rows")
        with self._naming_rows():
            seen = np.zeros((self.end - self.begin + 7) // 8, np.uint8)
            _native.mark_rows(describe(rows), self.begin, self.end, describe(seen))
        return rows

    def steps(self) -> NDArray[np.int64] | None:
        """Returns the training step of each row, [count]; None: all are of their commit's.

        Raises what `read` raises.
        """
        return self._array("step") if f"{self.table}.step" in self.segment.tensors else None

    def _at(self, kind: str) -> int:
        tensor = self.segment.tensors.get(f"{self.table}.{kind}")
        return 0 if tensor is None else tensor.begin

    def _array(self, kind: str) -> NDArray[Any]:
        name = f"{self.table}.{kind}"
        tensor = self.segment.tensors[name]
        data = np.empty(tensor.size, np.uint8)
        section = (self.segment.descriptor, tensor.begin, tensor.size, describe(data))
        self.segment.check_crc(name, _native.read_sections([section], 1, system.for_native())[0])
        return data.view(ARRAYS[tensor.code]).reshape(tensor.shape)

    @contextmanager
    def _naming_rows(self) -> Iterator[None]:
        try:
            yield
        except IndexError as error:
            raise CorruptionError(f"{self.segment.path}: {self._owner}: {error}") from None


def load_stored(wanted: Sequence[tuple[StoredRows, NativeTables, int, bool]], threads: int) -> None:
    """Writes stored rows into tables, block by block from their files; no row may come twice.

    Each goes to a table (by its number) of a collection or device; the last value says whether they end up
    dirty. Quantised rows are read whole and written after all others.
    Raises what `StoredRows.read` raises and SnapshotInProgress; only with the latter no row is written.
    """
    _load_exact([each for each in wanted if not each[0].quantised], threads)
    for stored, engine, table, dirty in wanted:
        if stored.quantised:
            rows = stored.read()
            state = None if rows.state is None else describe(rows.state)
            engine.load_rows(table, describe(rows.rows), describe(rows.weight), state, dirty=dirty)


def _load_exact(wanted: Sequence[tuple[StoredRows, NativeTables, int, bool]], threads: int) -> None:
    specs = []
    for stored, engine, table, dirty in wanted:
        offsets = [stored._at(kind) for kind in _KINDS]
        specs.append(
            (
                engine if isinstance(engine, _native.Collection) else engine.on_stream(),
                table,
                stored.segment.descriptor,
                os.fspath(stored.segment.path),
                stored._owner,
                stored.count,
                (offsets[0], offsets[1], offsets[2]),
                (stored.begin, stored.end),
                dirty,
            )
        )
    try:
        found = _native.load_stored_rows(specs, threads, system.for_native())
    except IndexError as error:
        raise CorruptionError(str(error)) from None
    except OSError as error:
        files.raise_error(Path(error.filename), error)
    for (stored, *_), crcs in zip(wanted, found, strict=True):
        for kind, crc in zip(_KINDS, crcs, strict=True):
            if f"{stored.table}.{kind}" in stored.segment.tensors:
                stored.segment.check_crc(f"{stored.table}.{kind}", crc)


@contextmanager
def stored_rows(
    path: Path,
    record: SegmentRecord,
    schema: CollectionSchema,
    placement: Placement,
    shard: int,
    *,
    priority: bool = False,
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
                StoredRows(
                    segment=segment,
                    shard=shard,
                    table=table,
                    count=count,
                    begin=begin,
                    end=end,
                    priority=priority,
                    layout=schema.table(table),
                )
            )
        yield found
