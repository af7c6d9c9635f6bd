"""Checking the segments of commits to the last byte, many files at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import naming
from cpr_native.store.manifest import Manifest, SegmentRecord
from cpr_native.store.quantise import bits_of, within_bound
from cpr_native.store.segment_reader import ARRAYS, OpenSegment, read_sections

# Files read at once: enough to keep threads busy, few enough for descriptors and for the memory of row ids.
_MOST_FILES = 64
_MOST_ROWS = 1 << 19


@dataclass(kw_only=True)
class CommitCheck:
    """A commit of `shard` (None: the global chain), whose segments lie in `folder`, and its `error`."""

    manifest: Manifest
    shard: int | None
    folder: Path
    error: CorruptionError | None = None
    _seen: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def open(self, record: SegmentRecord) -> OpenSegment:
        """Returns a segment with its header checked; raises CorruptionError, OSError."""
        segment = OpenSegment(self.folder / record.name, record)
        try:
            if self.shard is not None:
                segment.check_rows(record, self.manifest.schema, quantised=self.manifest.kind != "base")
                self._check_steps(segment, record)
        except CorruptionError:
            segment.close()
            raise
        return segment

    def _check_steps(self, segment: OpenSegment, record: SegmentRecord) -> None:
        """Raises CorruptionError unless rows state their step if, and only if, of several commits."""
        folded = self.manifest.kind == "priority" and self.manifest.replaces is not None
        for table in record.rows:
            if (f"{table}.step" in segment.tensors) != folded:
                raise CorruptionError(
                    f"{segment.path}: tensor '{table}.step': expected {'one' if folded else 'none'}"
                )

    def memory(self, segment: OpenSegment, record: SegmentRecord) -> dict[str, NDArray[Any]]:
        """Returns memory for the tensors that `take` looks at, by name."""
        return {
            name: np.empty(tensor.size, np.uint8).view(ARRAYS[tensor.code]).reshape(tensor.shape)
            for name, tensor in segment.tensors.items()
            if self.shard is not None
            and name.endswith((".rows", ".weight_range", ".weight_bound"))
            and name.rpartition(".")[0] in record.rows
        }

    def take(
        self,
        segment: OpenSegment,
        record: SegmentRecord,
        crcs: dict[str, int],
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        """Judges what was read; raises CorruptionError (bytes, a foreign row, a row twice), OSError."""
        for name, crc in crcs.items():
            segment.check_crc(name, crc)
        for table in record.rows if self.shard is not None else ():
            rows = arrays[f"{table}.rows"]
            self._check_bound(segment, table, arrays)
            assert self.shard is not None
            begin, end = self.manifest.placement.row_range(self.manifest.schema, table, self.shard)
            if table not in self._seen:
                self._seen[table] = np.zeros((end - begin + 7) // 8, np.uint8)
            where = f"{segment.path}: table {table!r}"
            try:
                new = _native.mark_rows(describe(rows), begin, end, describe(self._seen[table]))
            except IndexError as error:
                raise CorruptionError(f"{where}: shard {self.shard}: {error}") from None
            if new != len(rows):
                raise CorruptionError(f"{where}: {len(rows) - new} rows are given twice in one commit")

    def _check_bound(self, segment: OpenSegment, table: str, arrays: dict[str, NDArray[Any]]) -> None:
        if f"{table}.weight_range" not in arrays:
            return
        schema = self.manifest.schema.table(table)
        bits = bits_of(schema, segment.tensors[f"{table}.weight"].shape[1])
        assert bits is not None
        span, bound = arrays[f"{table}.weight_range"], arrays[f"{table}.weight_bound"]
        if not within_bound(span, bound, schema.dtype, bits).all():
            raise CorruptionError(f"{segment.path}: table {table!r}: errors of rows beyond their bound")

    def close(self) -> None:
        """Lets go of the memory; checks that a base is whole."""
        self._seen.clear()
        if self.error is None and self.manifest.kind == "base" and self.shard is not None:
            try:
                check_base_rows(self.manifest, self.shard)
            except ValueError as error:
                name = naming.manifest_name(self.manifest.sequence)
                self.error = CorruptionError(f"{self.folder.parent / naming.MANIFESTS / name}: {error}")


def check_segments(checks: Sequence[CommitCheck], threads: int) -> None:
    """Reads every byte of commits' segments; what is wrong is left in each one's `error`. Raises OSError."""
    for batch in _batches(checks):
        with ExitStack() as stack:
            opened = []
            for check, record in batch:
                try:
                    segment = check.open(record)
                except CorruptionError as error:
                    check.error = check.error or error
                    continue
                stack.callback(segment.close)
                opened.append((check, segment, record, check.memory(segment, record)))
            wanted = [
                (segment, {name: array.reshape(-1).view(np.uint8) for name, array in arrays.items()})
                for _, segment, _, arrays in opened
            ]
            for (check, segment, record, arrays), crcs in zip(
                opened, read_sections(wanted, threads), strict=True
            ):
                try:
                    check.take(segment, record, crcs, arrays)
                except CorruptionError as error:
                    check.error = check.error or error
    for check in checks:
        check.close()


def _batches(checks: Sequence[CommitCheck]) -> Iterator[list[tuple[CommitCheck, SegmentRecord]]]:
    batch: list[tuple[CommitCheck, SegmentRecord]] = []
    rows = 0
    for check in checks:
        for record in check.manifest.segments:
            batch.append((check, record))
            rows += sum(record.rows.values())
            if len(batch) == _MOST_FILES or rows >= _MOST_ROWS:
                yield batch
                batch, rows = [], 0
    if batch:
        yield batch


def check_base_rows(manifest: Manifest, shard: int) -> None:
    """Raises ValueError unless a base commit holds as many rows of every table as its shard has."""
    for table in manifest.schema.tables:
        begin, end = manifest.placement.row_range(manifest.schema, table.name, shard)
        got = manifest.rows.get(table.name, 0)
        if got != end - begin:
            raise ValueError(
                f"base of shard {shard}: table {table.name!r}: expected {end - begin} rows, got {got}"
            )
