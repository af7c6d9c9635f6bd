"""Segment files (rows of tables, or dense state): safetensors with the CRC-32C of every tensor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files
from cpr_native.store.manifest import SegmentRecord, parse_json
from cpr_native.store.schema import CollectionSchema, Placement

_DTYPES = {
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
_ROW_TENSORS = {"rows": "int64", "weight": "float32", "state": "float32", "count": "uint32"}
_METADATA = "__metadata__"


def _nothing() -> None:
    """The default of `SegmentPart.close`."""


@dataclass(frozen=True, kw_only=True)
class SegmentPart:
    """Rows of one table of one shard, as a snapshot took them; arrays are C-contiguous, in CPU memory.

    rows: int64 [n], global row ids. weight: float32 [n, dim]. state: float32 [n], or None for an optimizer
    without state. count: uint32 [n], the access counters before clearing. close gives the memory back: the
    store calls it once, as soon as the bytes are durable or the save is dropped.
    """

    shard: int
    table: str
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]
    close: Callable[[], object] = _nothing

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        state = 0 if self.state is None else self.state.nbytes
        return self.rows.nbytes + self.weight.nbytes + state + self.count.nbytes

    def check(self, schema: CollectionSchema, placement: Placement) -> None:
        """Raises ValueError, TypeError or IndexError unless the part fits the schema and its shard's rows."""
        try:
            table = schema.table(self.table)
        except KeyError:
            raise ValueError(f"part: table {self.table!r} is not in the schema") from None
        begin, end = placement.row_range(schema, self.table, self.shard)
        arrays: dict[str, NDArray[Any]] = {"rows": self.rows, "weight": self.weight, "count": self.count}
        if schema.has_state != (self.state is not None):
            raise ValueError(
                f"part of table {self.table!r}: optimizer {schema.optimizer}: state is {self.state}"
            )
        if self.state is not None:
            arrays["state"] = self.state
        count = len(self.rows)
        for name, array in arrays.items():
            shape = (count, table.dim) if name == "weight" else (count,)
            if array.dtype != _ROW_TENSORS[name]:
                raise TypeError(f"part: {name}: expected dtype {_ROW_TENSORS[name]}, got {array.dtype}")
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
class TableRows:
    """Rows of one table read from a segment: writable views of the file's bytes in memory of their own."""

    table: str
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]


def write_rows(path: Path, parts: Sequence[SegmentPart], metadata: Mapping[str, str]) -> SegmentRecord:
    """Writes the parts of one shard as a new segment, straight from their memory, and syncs it.

    Parts of one table are laid end to end. Returns its record; the directory is not synced. Raises OSError.
    """
    gathered: dict[tuple[str, str], list[NDArray[Any]]] = {}
    rows: dict[str, int] = {}
    for part in parts:
        rows[part.table] = rows.get(part.table, 0) + len(part.rows)
        for name in _ROW_TENSORS:
            array = getattr(part, name)
            if array is not None:
                gathered.setdefault((part.table, name), []).append(array)
    tensors = {
        f"{table}.{name}": gathered[table, name]
        for name in _ROW_TENSORS  # 8-byte items first: every tensor is aligned to its items
        for table in rows
        if (table, name) in gathered
    }
    size, crc = _write(path, tensors, metadata)
    return SegmentRecord(name=path.name, size=size, crc=crc, rows=rows)


def write_dense(
    path: Path, dense: Mapping[str, NDArray[Any] | bytes]
) -> tuple[SegmentRecord, tuple[str, ...]]:
    """Writes named arrays and byte strings as a new segment and syncs it.

    Returns its record and the names that were bytes. Raises OSError; TypeError for a foreign dtype.
    """
    arrays: dict[str, NDArray[Any]] = {}
    blobs = []
    for name, value in dense.items():
        if isinstance(value, bytes):
            blobs.append(name)
            arrays[name] = np.frombuffer(value, np.uint8)
        elif isinstance(value, np.ndarray):
            if value.dtype.name not in _DTYPES.values():
                raise TypeError(
                    f"dense {name!r}: dtype {value.dtype} is not one of {sorted(_DTYPES.values())}"
                )
            arrays[name] = np.require(value, value.dtype.newbyteorder("="), "C")
        else:
            raise TypeError(f"dense {name!r}: expected a NumPy array or bytes, got {type(value).__name__}")
    ordered = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
    size, crc = _write(path, {name: [arrays[name]] for name in ordered}, {})
    return SegmentRecord(name=path.name, size=size, crc=crc), tuple(sorted(blobs))


def _write(
    path: Path, tensors: Mapping[str, list[NDArray[Any]]], metadata: Mapping[str, str]
) -> tuple[int, int]:
    described = []
    for name, pieces in tensors.items():
        shape = pieces[0].shape
        if len(pieces) > 1:
            shape = (sum(len(piece) for piece in pieces), *shape[1:])
        described.append(
            _native.SegmentTensor(name, pieces[0].dtype.name, shape, [describe(piece) for piece in pieces])
        )
    return _native.write_segment(os.fspath(path), described, dict(metadata))


def read_tensors(path: Path, record: SegmentRecord) -> dict[str, NDArray[Any]]:
    """Returns every tensor of a segment, all bytes checked against its own CRCs and the manifest's record.

    The arrays are views of one fresh block of memory. Raises CorruptionError (missing file as well), OSError.
    """
    data = files.read_file(path, record.size)
    if data.size != record.size:
        raise CorruptionError(f"{path}: size: expected {record.size} bytes, got {data.size}")
    try:
        header, begin = _header(data)
        return _tensors(data, header, begin, record.crc)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(f"{path}: {error}") from None


def _header(data: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(data[:8].tobytes(), "little")
    if data.size < 8 or length > data.size - 8:
        raise ValueError(f"header: expected at most {data.size - 8} bytes, got {length}")
    header = parse_json(data[8 : 8 + length].tobytes())
    if not isinstance(header, dict) or not isinstance(header.get(_METADATA), dict):
        raise TypeError("header: expected an object with __metadata__")
    return header, 8 + length


def _tensors(
    data: NDArray[np.uint8], header: dict[str, Any], begin: int, crc: int
) -> dict[str, NDArray[Any]]:
    metadata = header.pop(_METADATA)
    tensors = {}
    whole = _native.crc32c(describe(data[:begin]))
    position = begin
    for name, entry in header.items():
        if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
            raise TypeError(f"tensor {name!r}: expected dtype, shape and data_offsets")
        shape, dtype = entry["shape"], np.dtype(_DTYPES[_text(entry["dtype"])])
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= data.size for n in shape):
            raise ValueError(f"tensor {name!r}: shape {shape}")
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        if (
            entry["data_offsets"] != [position - begin, position - begin + size]
            or size > data.size - position
        ):
            raise ValueError(f"tensor {name!r}: data_offsets {entry['data_offsets']} out of bounds or order")
        view = data[position : position + size]
        tensor_crc = _native.crc32c(describe(view))
        if metadata.get(f"crc32c.{name}") != f"{tensor_crc:08x}":
            raise ValueError(f"tensor {name!r}: CRC-32C differs, got {tensor_crc:08x}")
        whole = _native.crc32c_combine(whole, tensor_crc, size)
        tensors[name] = np.require(view.view(dtype).reshape(shape), None, "A")
        position += size
    if position != data.size:
        raise ValueError(f"expected {position} bytes of header and tensors, got {data.size}")
    if whole != crc:
        raise ValueError(f"CRC-32C of the file: expected {crc:08x}, got {whole:08x}")
    return tensors


def _text(value: object) -> str:
    if not isinstance(value, str) or value not in _DTYPES:
        raise ValueError(f"dtype: expected one of {sorted(_DTYPES)}, got {value!r}")
    return value


def read_rows(
    path: Path, record: SegmentRecord, schema: CollectionSchema, placement: Placement, shard: int
) -> list[TableRows]:
    """Returns the rows of every table in a segment of `shard`, checked to the last byte and by the schema.

    Raises CorruptionError (bytes, dtype, shape, a row outside shard or table), OSError.
    """
    tensors = read_tensors(path, record)
    parts = []
    try:
        for table, count in record.rows.items():
            rows = TableRows(
                table=table,
                rows=tensors.pop(f"{table}.rows"),
                weight=tensors.pop(f"{table}.weight"),
                state=tensors.pop(f"{table}.state", None),
                count=tensors.pop(f"{table}.count"),
            )
            SegmentPart(shard=shard, **vars(rows)).check(schema, placement)
            if len(rows.rows) != count:
                raise ValueError(f"table {table!r}: expected {count} rows, got {len(rows.rows)}")
            parts.append(rows)
    except KeyError as error:
        raise CorruptionError(f"{path}: tensor {error} is missing") from None
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptionError(f"{path}: {error}") from None
    if tensors:
        raise CorruptionError(f"{path}: tensors that the manifest does not name: {sorted(tensors)}")
    return parts


def read_dense(path: Path, record: SegmentRecord, blobs: Sequence[str]) -> dict[str, NDArray[Any] | bytes]:
    """Returns what `write_dense` was given: fresh arrays, and bytes for the names in `blobs`.

    Raises CorruptionError, OSError.
    """
    dense: dict[str, NDArray[Any] | bytes] = {
        name: t.copy() for name, t in read_tensors(path, record).items()
    }
    for name in blobs:
        value = dense.get(name)
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 1:
            raise CorruptionError(f"{path}: {name!r}: expected bytes")
        dense[name] = value.tobytes()
    return dense
