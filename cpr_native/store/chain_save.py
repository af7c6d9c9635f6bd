"""One save of one chain: segments as the rows come, then the commit, in the order that makes it durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpr_native.errors import CprError, FencedError
from cpr_native.store import files, naming
from cpr_native.store.chain import check_base_rows
from cpr_native.store.manifest import Manifest, Ref, SegmentRecord, check_json, encode
from cpr_native.store.segment import SegmentPart, write_dense, write_rows


def commit_manifest(chain: Path, manifest: Manifest) -> Ref:
    """Makes a commit durable, in this order, and returns the reference to it.

    The data of its segments was synced as each was written. Once the link exists nothing is taken back: an
    error after it is ambiguous, and the sequence number stays used.
    Raises FencedError when the sequence is taken or a higher one exists; OSError.
    """
    data, ref = encode(manifest)
    manifests, segments = chain / naming.MANIFESTS, chain / naming.SEGMENTS
    temporary = manifests / naming.temporary_name(manifest.sequence)
    if manifest.segments:
        files.sync_directory(segments)
    files.write_new(temporary, data)
    try:
        taken = [naming.parse(name) for name in files.list_directory(manifests)]
        if any(p and p.what == "manifest" and p.sequence >= manifest.sequence for p in taken):
            raise FencedError(
                f"{chain}: a newer writer has committed; this one (sequence {manifest.sequence}) must stop"
            )
        try:
            files.link_new(temporary, manifests / naming.manifest_name(manifest.sequence))
        except FileExistsError:
            raise FencedError(
                f"{chain}: sequence {manifest.sequence} was committed by another writer"
            ) from None
    finally:
        files.remove(temporary)
    files.sync_directory(manifests)
    return ref


class ChainSave:
    """Gathers rows into segments and commits them; made by `ChainWriter.begin`.

    After an error only `abort` is of use. `on_close` is called once, by `commit` or `abort`.
    """

    def __init__(
        self,
        chain: Path,
        manifest: Manifest,
        max_segment_bytes: int,
        on_commit: Callable[[Manifest], Ref],
        on_close: Callable[[], None],
    ) -> None:
        self.manifest = manifest
        self._chain = chain
        self._shard = naming.shard_of(manifest.chain)
        self._max_segment_bytes = max_segment_bytes
        self._on_commit = on_commit
        self._on_close = on_close
        self._parts: list[SegmentPart] = []
        self._files = 0
        self._records: list[SegmentRecord] = []
        self._blobs: tuple[str, ...] = ()
        self._open = True

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the parts that are held and not yet written."""
        return sum(part.nbytes for part in self._parts)

    def _check_open(self) -> None:
        if not self._open:
            raise CprError(f"{self._chain}: this save was committed or dropped")

    def add(self, part: SegmentPart) -> None:
        """Takes a part over, to be closed once its bytes are durable; writes a segment when it is full.

        Raises ValueError or TypeError for a part that does not fit (it stays the caller's); OSError.
        """
        self._check_open()
        if part.shard != self._shard:
            raise ValueError(f"part: expected shard {self._shard}, got {part.shard}")
        part.check(self.manifest.schema, self.manifest.placement)
        self._parts.append(part)
        if self.gathered_bytes >= self._max_segment_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes and syncs what is gathered as one segment and closes the parts; raises OSError."""
        self._check_open()
        if not self._parts:
            return
        metadata = {"run_id": self.manifest.run_id, "chain": self.manifest.chain, "kind": self.manifest.kind}
        self._records.append(write_rows(self._new_segment(), self._parts, metadata))
        self._close_parts()

    def _new_segment(self) -> Path:
        self._files += 1
        return self._chain / naming.SEGMENTS / naming.segment_name(self.manifest.sequence, self._files - 1)

    def _close_parts(self) -> None:
        while self._parts:
            self._parts.pop().close()

    def add_dense(self, dense: Mapping[str, NDArray[Any] | bytes]) -> None:
        """Writes and syncs the dense state as a segment of its own; raises TypeError, OSError."""
        self._check_open()
        record, self._blobs = write_dense(self._new_segment(), dense)
        self._records.append(record)

    def commit(
        self, *, commits: Mapping[int, Ref] | None = None, info: Mapping[str, Any] | None = None
    ) -> tuple[Manifest, Ref]:
        """Writes what is gathered and commits the save; returns the commit and the reference to it.

        commits: of the shards, for the global chain. info: JSON values.
        Raises ValueError (a base without all rows of its shard), TypeError, FencedError, OSError.
        """
        self._check_open()
        info = {} if info is None else dict(info)
        check_json("info", info)
        self.flush()
        manifest = replace(
            self.manifest,
            segments=tuple(self._records),
            blobs=self._blobs,
            commits=dict(commits or {}),
            info=info,
        )
        if manifest.kind == "base" and self._shard is not None:
            check_base_rows(manifest, self._shard)
        ref = self._on_commit(manifest)
        self._finish()
        return manifest, ref

    def abort(self) -> None:
        """Drops the save: closes the parts and removes its segments. Does nothing after `commit`."""
        if not self._open:
            return
        self._finish()
        self._close_parts()
        manifest = self._chain / naming.MANIFESTS / naming.manifest_name(self.manifest.sequence)
        if manifest.exists():
            return  # an error after the link: the commit may be durable, so its segments stay
        for index in range(self._files):
            with suppress(OSError):  # what cannot be removed is left to the next writer
                files.remove(
                    self._chain / naming.SEGMENTS / naming.segment_name(self.manifest.sequence, index)
                )

    def _finish(self) -> None:
        self._open = False
        self._on_close()
