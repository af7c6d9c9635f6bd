"""Reading the rows of a segment block by block: what compaction copies, within bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files
from cpr_native.store.quantise import QuantisedRows, bits_of, dequantise
from cpr_native.store.schema import TableSchema
from cpr_native.store.segment_reader import ARRAYS, OpenSegment


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Some rows of one table; arrays as in `SegmentPart`, in fresh memory."""

    rows: NDArray[np.int64]
    weight: NDArray[Any]
    state: NDArray[np.float32] | None
    count: NDArray[np.uint32]
    step: NDArray[np.int64] | None


_KINDS = ("rows", "weight", "weight_range", "weight_bound", "state", "count", "step")


def row_blocks(segment: OpenSegment, table: TableSchema, count: int, most_bytes: int) -> Iterator[RowBlock]:
    """Yields the `count` rows of `table` in blocks of at most `most_bytes`, or of one row.

    Weights come as they are restored, whatever codes they are stored as.

    Every tensor of the table is checked as it is read: at its end its CRC must be that of the header. So what
    was yielded counts only once the iterator has ended. Raises CorruptionError, OSError.
    """
    tensors = {
        kind: segment.tensors[f"{table.name}.{kind}"]
        for kind in _KINDS
        if f"{table.name}.{kind}" in segment.tensors
    }
    a_row = {kind: tensor.size // max(count, 1) for kind, tensor in tensors.items()}
    weight_bytes = table.dim * np.dtype(table.weight_array).itemsize
    block = max(1, most_bytes // (sum(a_row.values()) + weight_bytes))
    crcs: dict[str, int] = dict.fromkeys(tensors, 0)
    for first in range(0, count, block):
        number = min(block, count - first)
        arrays: dict[str, NDArray[Any]] = {}
        for kind, tensor in tensors.items():
            size = number * a_row[kind]
            try:
                data = files.read_at(segment.descriptor, tensor.begin + first * a_row[kind], size)
            except OSError as error:
                files.raise_error(segment.path, error)
            crcs[kind] = _native.crc32c_combine(crcs[kind], _native.crc32c(describe(data)), size)
            arrays[kind] = data.view(ARRAYS[tensor.code]).reshape(number, *tensor.shape[1:])
        yield RowBlock(
            rows=arrays["rows"],
            weight=_weight(arrays, table),
            state=arrays.get("state"),
            count=arrays["count"],
            step=arrays.get("step"),
        )
    for kind, crc in crcs.items():
        segment.check_crc(f"{table.name}.{kind}", crc)


def _weight(arrays: Mapping[str, NDArray[Any]], table: TableSchema) -> NDArray[Any]:
    if "weight_range" not in arrays:
        return arrays["weight"]
    codes = arrays["weight"]
    bits = bits_of(table, codes.shape[1])
    assert bits is not None
    return dequantise(QuantisedRows(codes, arrays["weight_range"], arrays["weight_bound"]), table, bits)


class TakenRows:
    """Which rows of one shard's table a copy has already: a bit a row, and one more within a commit."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        self._taken = np.zeros((end - begin + 7) // 8, np.uint8)
        self._in_commit = np.zeros_like(self._taken)

    def next_commit(self) -> None:
        """From here on rows are those of another commit, which has each at most once."""
        self._in_commit[:] = 0

    def take(self, rows: NDArray[np.int64], where: object) -> NDArray[np.bool_]:
        """Returns which of `rows` were not taken before, and takes them; raises CorruptionError."""
        try:
            new = _native.mark_rows(describe(rows), self._begin, self._end, describe(self._in_commit))
        except IndexError as error:
            raise CorruptionError(f"{where}: {error}") from None
        if new != len(rows):
            raise CorruptionError(f"{where}: {len(rows) - new} rows are given twice in one commit")
        at = rows - self._begin
        fresh: NDArray[np.bool_] = (self._taken[at >> 3] >> (at & 7).astype(np.uint8)) & 1 == 0
        _native.mark_rows(describe(rows), self._begin, self._end, describe(self._taken))
        return fresh
