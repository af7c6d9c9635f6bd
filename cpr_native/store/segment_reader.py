"""Reading segment files: every byte is checked, and only what is wanted goes to memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
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
from cpr_native.store.manifest import SegmentRecord, parse_json
from cpr_native.store.schema import CollectionSchema, Placement
from cpr_native.store.segment import DTYPES, SegmentPart, row_layout

_METADATA = "__metadata__"
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_ARRAYS = {**DTYPES, "BF16": "uint16"}  # bit patterns: NumPy has no bfloat16
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class _Tensor:
    """What the header says of one tensor; its bytes are [begin, end) of the file."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int
    crc: str

    def view(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns the tensor in the bytes of the file: a view, or a copy where they are not aligned."""
        raw = data[self.begin : self.end].view(_ARRAYS[self.code])
        return np.require(raw.reshape(self.shape), None, "A")


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """Rows of one table read from a segment: views of the memory that the file was read to."""

    table: str
    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]


class _Segment:
    """A segment file of the size its record says, open, with its header checked for form and bounds."""

    def __init__(self, path: Path, record: SegmentRecord, descriptor: int, size: int, threads: int) -> None:
        if size != record.size:
            raise ValueError(f"size: expected {record.size} bytes, got {size}")
        self._path, self._record, self._descriptor, self._threads = path, record, descriptor, threads
        length = int.from_bytes(files.read_at(descriptor, 0, min(8, size)).tobytes(), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"header: expected at most {size - 8} bytes, got {length}")
        self._header = files.read_at(descriptor, 0, 8 + length)
        self.tensors = _parse(self._header[8:].tobytes(), 8 + length, size)

    def read(self, to: Mapping[str, NDArray[np.uint8]]) -> None:
        """Reads every byte; those of the tensors in `to` go there. Raises ValueError (bad CRC), OSError."""
        sections = [
            (tensor.begin, tensor.end - tensor.begin, describe(to[name]) if name in to else None)
            for name, tensor in self.tensors.items()
        ]
        crcs = _native.read_sections(self._descriptor, os.fspath(self._path), sections, self._threads)
        whole = _native.crc32c(describe(self._header))
        for (name, tensor), crc in zip(self.tensors.items(), crcs, strict=True):
            if tensor.crc != f"{crc:08x}":
                raise ValueError(f"tensor {name!r}: CRC-32C differs, got {crc:08x}")
            whole = _native.crc32c_combine(whole, crc, tensor.end - tensor.begin)
        if whole != self._record.crc:
            raise ValueError(f"CRC-32C of the file: expected {self._record.crc:08x}, got {whole:08x}")


def _parse(text: bytes, begin: int, size: int) -> dict[str, _Tensor]:
    header = parse_json(text)
    if not isinstance(header, dict) or not isinstance(header.get(_METADATA), dict):
        raise TypeError("header: expected an object with __metadata__")
    metadata = header.pop(_METADATA)
    tensors = {}
    position = begin
    for name, entry in header.items():
        if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
            raise TypeError(f"tensor {name!r}: expected dtype, shape and data_offsets")
        code, shape = entry["dtype"], entry["shape"]
        if not isinstance(code, str) or code not in _ARRAYS:
            raise ValueError(f"dtype: expected one of {sorted(_ARRAYS)}, got {code!r}")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= size for n in shape):
            raise ValueError(f"tensor {name!r}: shape {shape}")
        length = np.dtype(_ARRAYS[code]).itemsize
        for extent in shape:
            length *= extent
        if entry["data_offsets"] != [position - begin, position - begin + length] or length > size - position:
            raise ValueError(f"tensor {name!r}: data_offsets {entry['data_offsets']} out of bounds or order")
        crc = metadata.get(f"crc32c.{name}")
        tensors[name] = _Tensor(code, tuple(shape), position, position + length, str(crc))
        position += length
    if position != size:
        raise ValueError(f"expected {position} bytes of header and tensors, got {size}")
    return tensors


def read_tensors(path: Path, record: SegmentRecord) -> dict[str, NDArray[Any]]:
    """Returns every tensor of a segment, all bytes checked against its own CRCs and the manifest's record.

    The arrays are views of one fresh block of memory. Raises CorruptionError (missing file as well), OSError.
    """
    with _corruption(path), files.opened(path, record.size) as (descriptor, size):
        segment = _Segment(path, record, descriptor, size, files.reading_threads())
        return _read_all(segment, np.empty(size, np.uint8))


def _read_all(segment: _Segment, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    segment.read({name: memory[tensor.begin : tensor.end] for name, tensor in segment.tensors.items()})
    return {name: tensor.view(memory) for name, tensor in segment.tensors.items()}


@contextmanager
def _corruption(path: Path) -> Iterator[None]:
    """Turns what is found wrong with a file into CorruptionError with its path."""
    try:
        yield
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise CorruptionError(f"{path}: {error}") from None


def _check_layout(segment: _Segment, record: SegmentRecord, schema: CollectionSchema) -> None:
    """Raises ValueError unless the tensors are exactly those of the record's rows, by the schema."""
    expected = {}
    for name, count in record.rows.items():
        try:
            table = schema.table(name)
        except KeyError:
            raise ValueError(f"table {name!r} is not in the schema") from None
        for kind, (dtype, shape) in row_layout(table, count).items():
            if shape is not None:
                code = "BF16" if (kind, table.dtype) == ("weight", "bfloat16") else _CODES[dtype]
                expected[f"{name}.{kind}"] = (code, shape)
    for tensor, (code, shape) in expected.items():
        found = segment.tensors.get(tensor)
        if found is None:
            raise ValueError(f"tensor {tensor!r} is missing")
        if (found.code, found.shape) != (code, shape):
            raise ValueError(
                f"tensor {tensor!r}: expected {code} of shape {list(shape)}, got {found.code} of "
                f"{list(found.shape)}"
            )
    if foreign := sorted(set(segment.tensors) - set(expected)):
        raise ValueError(f"tensors that the manifest does not name: {foreign}")


class SeenRows:
    """Which rows of a shard were read, a byte a row; each table has memory once it is first named."""

    def __init__(self, schema: CollectionSchema, placement: Placement, shard: int) -> None:
        self._schema, self._placement, self._shard = schema, placement, shard
        self._seen: dict[str, NDArray[np.uint8]] = {}

    def add(self, table: str, rows: NDArray[np.int64]) -> int:
        """Marks `rows` and returns how many were new; raises IndexError for one that is not the shard's."""
        begin, end = self._placement.row_range(self._schema, table, self._shard)
        if table not in self._seen:
            self._seen[table] = np.zeros(end - begin, np.uint8)
        try:
            return _native.mark_rows(describe(rows), begin, describe(self._seen[table]))
        except IndexError as error:
            raise IndexError(f"table {table!r}: rows of shard {self._shard}: {error}") from None


def check_rows(
    path: Path,
    record: SegmentRecord,
    schema: CollectionSchema,
    seen: SeenRows,
    *,
    once: bool,
    threads: int,
) -> None:
    """Reads a segment of rows and checks it to the last byte and by the schema; only row ids go to memory.

    seen: marks its rows; `once`: each must be new to it. Raises CorruptionError (bytes, dtype, shape, a row
    outside shard or table or given twice), OSError.
    """
    with _corruption(path), files.opened(path, record.size) as (descriptor, size):
        segment = _Segment(path, record, descriptor, size, threads)
        _check_layout(segment, record, schema)
        rows = {table: np.empty(count, np.int64) for table, count in record.rows.items()}
        segment.read({f"{table}.rows": ids.view(np.uint8) for table, ids in rows.items()})
        for table, ids in rows.items():
            new = seen.add(table, ids)
            if once and new != len(ids):
                raise ValueError(f"table {table!r}: {len(ids) - new} rows of a base are given twice")


def read_rows(
    path: Path,
    record: SegmentRecord,
    schema: CollectionSchema,
    placement: Placement,
    shard: int,
    *,
    memory: NDArray[np.uint8] | None = None,
    threads: int = 1,
) -> list[TableRows]:
    """Returns the rows of every table in a segment of `shard`, checked to the last byte and by the schema.

    The arrays are views of `memory`, uint8 of at least the record's size and aligned to 8 bytes; None: of a
    fresh block. Raises CorruptionError (bytes, dtype, shape, a row outside shard or table), OSError.
    """
    with _corruption(path), files.opened(path, record.size) as (descriptor, size):
        segment = _Segment(path, record, descriptor, size, threads)
        _check_layout(segment, record, schema)
        tensors = _read_all(segment, np.empty(size, np.uint8) if memory is None else memory[:size])
        parts = []
        for table in record.rows:
            rows = TableRows(
                table=table,
                rows=tensors[f"{table}.rows"],
                weight=tensors[f"{table}.weight"],
                state=tensors.get(f"{table}.state"),
                count=tensors[f"{table}.count"],
            )
            SegmentPart(shard=shard, **vars(rows)).check(schema, placement)
            parts.append(rows)
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
