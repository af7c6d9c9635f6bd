"""One save of one chain: segments as the rows come, then the commit, in the order that makes it durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpr_native._native import GatheredRows
from cpr_native.errors import CprError
from cpr_native.store import files, naming
from cpr_native.store.background import Syncing, close_parts
from cpr_native.store.check import check_base_rows
from cpr_native.store.checks import check_json
from cpr_native.store.manifest import Manifest, Ref, SegmentRecord
from cpr_native.store.segment import (
    QuantisedPart,
    SegmentPart,
    quantised_parts,
    write_dense,
    write_gathered,
    write_quantised,
    write_rows,
)


class ChainSave:
    """Gathers rows into segments and commits them; made by `ChainWriter.begin`.

    After an error only `abort` is of use. `syncing` makes the segments durable; `on_prepare` and
    `on_publish` are the two steps of the commit, `on_close` is called once, by `publish` or `abort`;
    `on_sealed` is told of each segment that is durable. `quantise`: bits of the codes that weights become,
    in all but a base.
    """

    def __init__(
        self,
        chain: Path,
        manifest: Manifest,
        max_segment_bytes: int,
        syncing: Syncing,
        on_prepare: Callable[[Manifest], Ref],
        on_publish: Callable[[Manifest, Ref], None],
        on_close: Callable[[], None],
        on_sealed: Callable[[SegmentRecord], object] | None = None,
        quantise: int | None = None,
    ) -> None:
        self._quantise = quantise
        self.manifest = manifest
        self._on_sealed = on_sealed
        self._chain = chain
        self._shard = naming.shard_of(manifest.chain)
        self.max_segment_bytes = max_segment_bytes
        self._syncing = syncing
        self._on_prepare = on_prepare
        self._on_publish = on_publish
        self._on_close = on_close
        self._missing = _rows_to_come(manifest, self._shard)
        self._parts: list[SegmentPart] = []
        self._gathered_bytes = 0
        self._files = 0
        self._records: list[SegmentRecord] = []
        self._blobs: tuple[str, ...] = ()
        self._ref: Ref | None = None
        self._open = True

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the parts that are held and not yet written."""
        return self._gathered_bytes

    def _check_open(self) -> None:
        if not self._open:
            raise CprError(f"{self._chain}: this save was committed or dropped")

    def add(self, part: SegmentPart) -> None:
        """Takes a part over, to be closed once its bytes are durable.

        A segment is written when it is full, and when a base has all rows of its shard.
        Raises ValueError or TypeError for a part that does not fit (it stays the caller's); OSError.
        """
        self._check_open()
        if part.shard != self._shard:
            raise ValueError(f"part: expected shard {self._shard}, got {part.shard}")
        part.check(self.manifest.schema, self.manifest.placement)
        self._parts.append(part)
        self._gathered_bytes += part.nbytes
        self._missing -= len(part.rows)
        if self._missing == 0 or self.gathered_bytes >= self.max_segment_bytes:
            self.write()

    @property
    def missing(self) -> int:
        """Rows that a base of the shard still needs; negative for any other save."""
        return self._missing

    def add_gathered(self, gathered: GatheredRows, tables: Sequence[str] | None = None) -> None:
        """Takes over what a snapshot of the writer's tables gathered and writes it as one segment.

        tables: of a snapshot of this shard's rows alone, their names in its order; None: it is of all shards,
        and of the tables of the schema.
        Raises ValueError for rows of another shard (they stay the caller's); OSError.
        """
        self._check_open()
        if tables is None and gathered.shard != self._shard:
            raise ValueError(f"rows: expected shard {self._shard}, got {gathered.shard}")
        names = [table.name for table in self.manifest.schema.tables] if tables is None else list(tables)
        file, record = write_gathered(self._new_segment(), gathered, names, self._metadata())
        self._missing -= sum(record.rows.values())
        self._records.append(record)
        self._syncing.add(file, [gathered], self._sealed(record))

    def _metadata(self) -> dict[str, str]:
        return {"run_id": self.manifest.run_id, "chain": self.manifest.chain, "kind": self.manifest.kind}

    def write(self) -> None:
        """Writes what is gathered as one segment, which becomes durable in the background; raises OSError."""
        self._check_open()
        if not self._parts:
            return
        schema, metadata = self.manifest.schema, self._metadata()
        small: list[QuantisedPart] = []
        exact = self._parts
        if self._quantise is not None and self.manifest.kind != "base":
            small, exact = quantised_parts(self._parts, schema, self._quantise)
        written = []
        if small:
            written.append(write_quantised(self._new_segment(), small, schema, metadata))
        if exact:
            written.append(write_rows(self._new_segment(), exact, schema, metadata))
        parts, self._parts, self._gathered_bytes = self._parts, [], 0
        for file, record in written:
            held = parts if record is written[-1][1] else []
            self._records.append(record)
            self._syncing.add(file, held, self._sealed(record))

    def _sealed(self, record: SegmentRecord) -> Callable[[], object] | None:
        return None if self._on_sealed is None else partial(self._on_sealed, record)

    def flush(self) -> None:
        """Writes what is gathered, waits until it is durable and closes the parts; raises OSError."""
        self.write()
        self._syncing.wait()

    def _new_segment(self) -> Path:
        self._files += 1
        return self._chain / naming.SEGMENTS / naming.segment_name(self.manifest.sequence, self._files - 1)

    def add_dense(self, dense: Mapping[str, NDArray[Any] | bytes]) -> None:
        """Writes the dense state as a segment of its own; raises TypeError, OSError."""
        self._check_open()
        file, record, self._blobs = write_dense(self._new_segment(), dense)
        self._records.append(record)
        self._syncing.add(file, [], self._sealed(record))

    def prepare(
        self, *, commits: Mapping[int, Ref] | None = None, info: Mapping[str, Any] | None = None
    ) -> Ref:
        """Makes everything durable but the commit's name; returns the reference that `publish` commits.

        commits: of the shards, for the global chain. info: JSON values.
        Raises ValueError (a base without all rows of its shard), TypeError, OSError.
        """
        self._check_open()
        info = {} if info is None else dict(info)
        check_json("info", info)
        self.flush()
        self.manifest = replace(
            self.manifest,
            segments=tuple(self._records),
            blobs=self._blobs,
            commits=dict(commits or {}),
            info=info,
        )
        if self.manifest.kind == "base" and self._shard is not None:
            check_base_rows(self.manifest, self._shard)
        self._ref = self._on_prepare(self.manifest)
        return self._ref

    def publish(self) -> None:
        """Commits what was prepared; raises FencedError, OSError."""
        self._check_open()
        if self._ref is None:
            raise CprError(f"{self._chain}: this save is not prepared")
        self._on_publish(self.manifest, self._ref)
        self._finish()

    def commit(self, *, info: Mapping[str, Any] | None = None) -> tuple[Manifest, Ref]:
        """Writes what is gathered and commits the save; returns the commit and the reference to it.

        info: JSON values. Raises what `prepare` and `publish` raise.
        """
        ref = self.prepare(info=info)
        self.publish()
        return self.manifest, ref

    def abort(self) -> None:
        """Drops the save: closes the parts and removes its files. Does nothing after a commit."""
        if not self._open:
            return
        self._finish()
        self._syncing.drain()
        close_parts(self._parts)
        manifests, segments = self._chain / naming.MANIFESTS, self._chain / naming.SEGMENTS
        sequence = self.manifest.sequence
        try:
            if files.exists(manifests / naming.manifest_name(sequence)):
                return  # an error after the link: the commit may be durable, so its segments stay
        except OSError:
            return
        # Other files of this number are another writer's; what can't be removed is left to the next one.
        if self._ref is not None:
            with suppress(OSError):
                files.remove(manifests / naming.temporary_name(sequence))
        for record in self._records:
            with suppress(OSError):
                files.remove(segments / record.name)

    def _finish(self) -> None:
        self._open = False
        self._on_close()


def _rows_to_come(manifest: Manifest, shard: int | None) -> int:
    """Returns how many rows a base of `shard` must hold; -1, which no count reaches, for anything else."""
    if manifest.kind != "base" or shard is None:
        return -1
    ranges = [manifest.placement.row_range(manifest.schema, t.name, shard) for t in manifest.schema.tables]
    return sum(end - begin for begin, end in ranges)
