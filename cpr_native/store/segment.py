"""Writing segment files (rows of tables, or dense state): safetensors with the CRC-32C of every tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.store import system
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.placement import Placement
from cpr_native.store.quantise import QuantisedRows, quantise, saves_bytes
from cpr_native.store.schema import CollectionSchema, TableSchema

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
ROW_TENSORS = ("rows", "weight", "state", "count", "step")


def _nothing() -> None:
    """The default of `SegmentPart.close`."""


@dataclass(frozen=True, kw_only=True)
class SegmentPart:
    """Rows of one table of one shard, as a snapshot took them; arrays are C-contiguous, in CPU memory.

    rows: int64 [n], global row ids. weight: [n, dim] of the table's dtype, uint16 bit patterns for bfloat16.
    state: float32 [n, columns], [n] of one column, or None without state. count: uint32 [n], the
    access counters before clearing. close gives the memory back: the store calls it once, as soon as the
    bytes are durable or the save is dropped, on any thread. step: int64 [n], the training step at which each
    row was taken, only in what compaction makes of priority commits.
    """

    shard: int
    table: str
    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]
    close: Callable[[], object] = _nothing
    step: NDArray[np.int64] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        state = 0 if self.state is None else self.state.nbytes
        step = 0 if self.step is None else self.step.nbytes
        return self.rows.nbytes + self.weight.nbytes + state + self.count.nbytes + step

    def some(self, chosen: NDArray[np.bool_]) -> SegmentPart:
        """Returns a copy of the rows that are `chosen`, which gives nothing back."""
        return replace(
            self,
            rows=self.rows[chosen],
            weight=self.weight[chosen],
            state=None if self.state is None else self.state[chosen],
            count=self.count[chosen],
            step=None if self.step is None else self.step[chosen],
            close=_nothing,
        )

    def check(self, schema: CollectionSchema, placement: Placement) -> None:
        """Raises ValueError, TypeError or IndexError unless the part fits the schema and its shard's rows."""
        try:
            table = schema.table(self.table)
        except KeyError:
            raise ValueError(f"part: table {self.table!r} is not in the schema") from None
        begin, end = placement.row_range(schema, self.table, self.shard)
        count = len(self.rows)
        for name, (dtype, shape) in row_layout(table, count).items():
            array = getattr(self, name)
            if array is None or shape is None:
                if array is not shape:
                    raise ValueError(
                        f"part of table {self.table!r}: {name}: expected shape {shape} under "
                        f"{schema.optimizer}, got {array if array is None else array.shape}"
                    )
                continue
            if array.dtype != dtype:
                raise TypeError(
                    f"part of table {self.table!r}: {name}: expected dtype {dtype}, got {array.dtype}"
                )
            if array.shape != shape:
                raise ValueError(
                    f"part of table {self.table!r}: {name}: expected shape {shape}, got {array.shape}"
                )
        if count and not begin <= int(self.rows.min()) <= int(self.rows.max()) < end:
            raise ValueError(
                f"part of table {self.table!r}: rows: expected rows of shard {self.shard}, [{begin}, {end}), "
                f"got {self.rows.min()}..{self.rows.max()}"
            )


@dataclass(frozen=True, kw_only=True)
class QuantisedPart:
    """Rows of one table of one shard whose weights are codes; the other arrays as in `SegmentPart`."""

    table: str
    rows: NDArray[np.int64]
    weight: QuantisedRows
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays under their names in a segment."""
        named: dict[str, NDArray[Any] | None] = {
            "rows": self.rows,
            "weight": self.weight.codes,
            "weight_range": self.weight.range,
            "weight_bound": self.weight.bound,
            "state": self.state,
            "count": self.count,
        }
        return {name: array for name, array in named.items() if array is not None}


def quantised_parts(
    parts: Sequence[SegmentPart], schema: CollectionSchema, bits: int
) -> tuple[list[QuantisedPart], list[SegmentPart]]:
    """Returns the rows of `parts` that are written as codes, and those that are written as they are."""
    small: list[QuantisedPart] = []
    exact: list[SegmentPart] = []
    for part in parts:
        table = schema.table(part.table)
        if not saves_bytes(table, bits):
            exact.append(part)
            continue
        weight, fits = quantise(part.weight, table, bits)
        chosen = part if fits.all() else part.some(fits)
        if len(chosen.rows):
            small.append(
                QuantisedPart(
                    table=part.table, rows=chosen.rows, weight=weight, state=chosen.state, count=chosen.count
                )
            )
        if chosen is not part:
            exact.append(part.some(~fits))
    return small, exact


def row_layout(table: TableSchema, rows: int) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    """Returns dtype (of NumPy arrays) and shape of what `rows` rows of `table` are; shape None: not there."""
    return {
        "rows": ("int64", (rows,)),
        "weight": (table.weight_array, (rows, table.dim)),
        "state": ("float32", table.state_shape(rows)),
        "count": ("uint32", (rows,)),
    }


def write_rows(
    path: Path, parts: Sequence[SegmentPart], schema: CollectionSchema, metadata: Mapping[str, str]
) -> tuple[_native.SegmentFile, SegmentRecord]:
    """Writes the parts of one shard as a new segment, straight from their memory.

    Parts of one table are laid end to end. Returns the file, durable once it is synced and its directory too,
    and its record. Raises OSError.
    """
    gathered: dict[tuple[str, str], list[NDArray[Any]]] = {}
    rows: dict[str, int] = {}
    for part in parts:
        rows[part.table] = rows.get(part.table, 0) + len(part.rows)
        for name in ROW_TENSORS:
            array = getattr(part, name)
            if array is not None:
                gathered.setdefault((part.table, name), []).append(array)
    tensors = {
        f"{table}.{name}": gathered[table, name]
        for name in ROW_TENSORS
        for table in rows
        if (table, name) in gathered
    }
    labels = {f"{t.name}.weight": t.dtype for t in schema.tables if t.dtype == "bfloat16"}
    file = _write(path, _described(tensors, labels), metadata)
    return file, SegmentRecord(name=path.name, size=file.size, crc=file.crc, rows=rows)


def write_quantised(
    path: Path, parts: Sequence[QuantisedPart], schema: CollectionSchema, metadata: Mapping[str, str]
) -> tuple[_native.SegmentFile, SegmentRecord]:
    """Writes quantised rows of one shard as a new segment; returns and raises what `write_rows` does."""
    tensors: dict[str, list[NDArray[Any]]] = {}
    rows: dict[str, int] = {}
    for part in parts:
        rows[part.table] = rows.get(part.table, 0) + len(part.rows)
        for name, array in part.arrays().items():
            tensors.setdefault(f"{part.table}.{name}", []).append(array)
    file = _write(path, _described(tensors, {}), metadata)
    return file, SegmentRecord(name=path.name, size=file.size, crc=file.crc, rows=rows)


def write_gathered(
    path: Path, gathered: _native.GatheredRows, names: Sequence[str], metadata: Mapping[str, str]
) -> tuple[_native.SegmentFile, SegmentRecord]:
    """Writes what a snapshot's `gather` handed out as a new segment, straight from the snapshot's memory.

    names: of the tables of the snapshot's collection, in its order. Returns and raises what `write_rows`
    does.
    """
    file = _write(path, gathered.tensors(names), metadata)
    rows = {names[table]: count for table, count in gathered.rows.items()}
    return file, SegmentRecord(name=path.name, size=file.size, crc=file.crc, rows=rows)


def write_dense(
    path: Path, dense: Mapping[str, NDArray[Any] | bytes]
) -> tuple[_native.SegmentFile, SegmentRecord, tuple[str, ...]]:
    """Writes named arrays and byte strings as a new segment.

    Returns the file, durable once it is synced and its directory too, its record, and the names that were
    bytes. Raises OSError; TypeError for a foreign dtype.
    """
    arrays: dict[str, NDArray[Any]] = {}
    blobs = []
    for name, value in dense.items():
        if isinstance(value, bytes):
            blobs.append(name)
            arrays[name] = np.frombuffer(value, np.uint8)
        elif isinstance(value, np.ndarray):
            if value.dtype.name not in DTYPES.values():
                raise TypeError(
                    f"dense {name!r}: dtype {value.dtype} is not one of {sorted(DTYPES.values())}"
                )
            arrays[name] = np.require(value, value.dtype.newbyteorder("="), "C")
        else:
            raise TypeError(f"dense {name!r}: expected a NumPy array or bytes, got {type(value).__name__}")
    file = _write(path, _described({name: [array] for name, array in arrays.items()}, {}), {})
    return file, SegmentRecord(name=path.name, size=file.size, crc=file.crc), tuple(sorted(blobs))


def _described(
    tensors: Mapping[str, list[NDArray[Any]]], labels: Mapping[str, str]
) -> list[_native.SegmentTensor]:
    """Describes tensors given as pieces; `labels`: those whose dtype is another one than their arrays'."""
    described = []
    # The widest items first: every tensor is aligned to its items.
    for name in sorted(tensors, key=lambda name: -tensors[name][0].dtype.itemsize):
        pieces = [describe(piece) for piece in tensors[name]]
        dtype = labels.get(name, pieces[0][2])
        shape = pieces[0][1]
        if len(pieces) > 1:
            shape = (sum(piece[1][0] for piece in pieces), *shape[1:])
        labelled = [(address, extent, dtype) for address, extent, _ in pieces]
        described.append(_native.SegmentTensor(name, dtype, shape, labelled))
    return described


def _write(
    path: Path, tensors: Sequence[_native.SegmentTensor], metadata: Mapping[str, str]
) -> _native.SegmentFile:
    return _native.SegmentFile(os.fspath(path), tensors, dict(metadata), system.for_native())
