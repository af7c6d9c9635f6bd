"""Reading segment files: every byte is checked, and only what is wanted goes to memory."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files, system
from cpr_native.store.manifest import SegmentRecord, parse_json
from cpr_native.store.quantise import bits_of
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.segment import DTYPES, row_layout

_METADATA = "__metadata__"
_CODES = {dtype: code for code, dtype in DTYPES.items()}
ARRAYS = {**DTYPES, "BF16": "uint16"}  # bit patterns: NumPy has no bfloat16
_MAX_HEADER_BYTES = 100_000_000
_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)


@contextmanager
def _corruption(path: Path) -> Iterator[None]:
    """Turns what is found wrong with a file into CorruptionError with its path."""
    try:
        yield
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise CorruptionError(f"{path}: {error}") from None


@dataclass(frozen=True)
class _Tensor:
    """What the header says of one tensor; its bytes are [begin, end) of the file."""

    code: str
    shape: tuple[int, ...]
    begin: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


@functools.lru_cache(maxsize=1024)
def _parse(text: bytes, begin: int, size: int) -> Mapping[str, _Tensor]:
    """Returns the tensors that a header describes, which fill the file from `begin` to `size`."""
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
        if not isinstance(code, str) or code not in ARRAYS:
            raise ValueError(f"dtype: expected one of {sorted(ARRAYS)}, got {code!r}")
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= size for n in shape):
            raise ValueError(f"tensor {name!r}: shape {shape}")
        length = np.dtype(ARRAYS[code]).itemsize
        for extent in shape:
            length *= extent
        if entry["data_offsets"] != [position - begin, position - begin + length] or length > size - position:
            raise ValueError(f"tensor {name!r}: data_offsets {entry['data_offsets']} out of bounds or order")
        crc = metadata.get(f"crc32c.{name}")
        if not isinstance(crc, str) or not _HEX.fullmatch(crc):
            raise ValueError(f"tensor {name!r}: crc32c: expected 8 lower-case hex digits, got {crc!r}")
        tensors[name] = _Tensor(code, tuple(shape), position, position + length, int(crc, 16))
        position += length
    if position != size:
        raise ValueError(f"expected {position} bytes of header and tensors, got {size}")
    return tensors


class OpenSegment:
    """A segment file whose header is the one that its record speaks of; of the data nothing was read yet.

    The CRC of the whole file, which the record has, follows from those of the header and, as the header
    states them, of the tensors: so only the tensors' bytes remain to be compared with their own.
    Raises CorruptionError (missing file as well), OSError.
    """

    def __init__(self, path: Path, record: SegmentRecord) -> None:
        self.path = path
        with _corruption(path), ExitStack() as stack:
            self.descriptor, size = stack.enter_context(files.opened(path, record.size))
            if size != record.size:
                raise ValueError(f"size: expected {record.size} bytes, got {size}")
            header = self._read_header(size)
            self.tensors = _parse(header[8:].tobytes(), header.size, size)
            crc = _native.crc32c(describe(header))
            for tensor in self.tensors.values():
                crc = _native.crc32c_combine(crc, tensor.crc, tensor.size)
            if crc != record.crc:
                raise ValueError(f"CRC-32C of the file: expected {record.crc:08x}, got {crc:08x}")
            self._open = stack.pop_all()

    def _read_header(self, size: int) -> NDArray[np.uint8]:
        length = int.from_bytes(files.read_at(self.descriptor, 0, min(8, size)).tobytes(), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"header: expected at most {size - 8} bytes, got {length}")
        return files.read_at(self.descriptor, 0, 8 + length)

    def check_crc(self, name: str, crc: int) -> None:
        """Raises CorruptionError unless the bytes of tensor `name` have the CRC that the header states.

        crc: of what was read, or a negative errno.
        """
        if crc < 0:
            files.raise_error(self.path, OSError(-crc, os.strerror(-crc)))
        if crc != self.tensors[name].crc:
            raise CorruptionError(f"{self.path}: tensor {name!r}: CRC-32C differs, got {crc:08x}")

    def check_rows(self, record: SegmentRecord, schema: CollectionSchema, *, quantised: bool = True) -> None:
        """Raises CorruptionError unless the tensors are exactly those of the record's rows, by the schema.

        quantised: whether weights may be codes (not in a base).
        """
        with _corruption(self.path):
            expected = _expected(record, schema, self.tensors if quantised else {})
            expected |= {
                f"{name}.step": ("I64", (count,))
                for name, count in record.rows.items()
                if f"{name}.step" in self.tensors
            }
            for tensor, (code, shape) in expected.items():
                found = self.tensors.get(tensor)
                if found is None:
                    raise ValueError(f"tensor {tensor!r} is missing")
                if (found.code, found.shape) != (code, shape):
                    raise ValueError(
                        f"tensor {tensor!r}: expected {code} of shape {list(shape)}, got {found.code} of "
                        f"{list(found.shape)}"
                    )
            if foreign := sorted(set(self.tensors) - set(expected)):
                raise ValueError(f"tensors that the manifest does not name: {foreign}")

    def close(self) -> None:
        """Closes the file."""
        self._open.close()

    def __enter__(self) -> OpenSegment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _expected(
    record: SegmentRecord, schema: CollectionSchema, tensors: Mapping[str, _Tensor]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, count in record.rows.items():
        try:
            table = schema.table(name)
        except KeyError:
            raise ValueError(f"table {name!r} is not in the schema") from None
        for kind, (dtype, shape) in row_layout(table, count).items():
            if shape is not None:
                code = "BF16" if (kind, table.dtype) == ("weight", "bfloat16") else _CODES[dtype]
                expected[f"{name}.{kind}"] = (code, shape)
        weight = tensors.get(f"{name}.weight")
        if weight is not None and weight.code == "U8":
            if len(weight.shape) != 2 or bits_of(table, weight.shape[1]) is None:
                raise ValueError(f"tensor {name + '.weight'!r}: no codes of such rows: {list(weight.shape)}")
            expected[f"{name}.weight"] = ("U8", (count, weight.shape[1]))
            expected[f"{name}.weight_range"] = ("F32", (count, 2))
            expected[f"{name}.weight_bound"] = ("F32", (count,))
    return expected


def read_sections(
    wanted: Sequence[tuple[OpenSegment, Mapping[str, NDArray[np.uint8]]]], threads: int
) -> list[dict[str, int]]:
    """Reads every byte of segments at once; those of the tensors in each mapping go to its memory.

    Returns of each segment the CRCs, or negative errnos, of its tensors: for `check_crc`.
    """
    sections = [
        (segment.descriptor, tensor.begin, tensor.size, describe(to[name]) if name in to else None)
        for segment, to in wanted
        for name, tensor in segment.tensors.items()
    ]
    crcs = iter(_native.read_sections(sections, threads, system.for_native()))
    return [{name: next(crcs) for name in segment.tensors} for segment, _ in wanted]


def read_tensors(path: Path, record: SegmentRecord) -> dict[str, NDArray[Any]]:
    """Returns every tensor of a segment in fresh memory, checked to the last byte.

    bfloat16 comes as uint16 bit patterns. Raises CorruptionError (missing file as well), OSError.
    """
    with OpenSegment(path, record) as segment:
        data = {name: np.empty(tensor.size, np.uint8) for name, tensor in segment.tensors.items()}
        (crcs,) = read_sections([(segment, data)], files.reading_threads())
        for name, crc in crcs.items():
            segment.check_crc(name, crc)
        return {
            name: data[name].view(ARRAYS[tensor.code]).reshape(tensor.shape)
            for name, tensor in segment.tensors.items()
        }


def read_dense(path: Path, record: SegmentRecord, blobs: Sequence[str]) -> dict[str, NDArray[Any] | bytes]:
    """Returns what `write_dense` was given: fresh arrays, and bytes for the names in `blobs`.

    Raises CorruptionError, OSError.
    """
    dense: dict[str, NDArray[Any] | bytes] = dict(read_tensors(path, record))
    for name in blobs:
        value = dense.get(name)
        if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 1:
            raise CorruptionError(f"{path}: {name!r}: expected bytes")
        dense[name] = value.tobytes()
    return dense
