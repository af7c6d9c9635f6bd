"""The entrance to a checkpoint directory. Reading takes no lock and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store import naming
from cpr_native.store.chain import note
from cpr_native.store.chain_writer import DEFAULT_SEGMENT_BYTES, ChainWriter
from cpr_native.store.compact import Folded, Watch
from cpr_native.store.directory import Directory, RestorePoint
from cpr_native.store.manifest import EXACT_KINDS
from cpr_native.store.placement import Placement
from cpr_native.store.remote import is_url
from cpr_native.store.remote_mirror import Mirror
from cpr_native.store.restore import Mode, RestorePlan, refusal, running_plan
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.writer import StoreWriter

R = TypeVar("R", RestorePoint, RestorePlan)

_READINGS = 10  # of a directory whose commits go while they are read


class CheckpointStore:
    """A checkpoint directory. Making the object touches nothing; the first writer makes the directory.

    path: a folder, or the URL of a remote checkpoint (`s3://bucket/prefix`, `file://...`, whatever fsspec
    knows; extra `remote`), which the folder `cache` mirrors (None: one named by a hash of the URL in the
    user's cache directory): `docs/remote.md`. storage_options: of the URL's fsspec file system.
    `path`: the folder; `url`: None for a plain one. Raises ValueError for a cache of a plain folder.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._mirror: Mirror | None = None
        if isinstance(path, str) and is_url(path):
            self._mirror = Mirror(path, None if cache is None else Path(cache).absolute(), storage_options)
        elif cache is not None or storage_options is not None:
            raise ValueError(f"{path}: cache and storage_options are of URLs only")
        self.url = None if self._mirror is None else self._mirror.url
        self.path = Path(path).absolute() if self._mirror is None else self._mirror.cache

    def __str__(self) -> str:
        return self.url or str(self.path)

    def directory(self, chains: Sequence[str] | None = None) -> Directory:
        """Returns the chains as they are now, the manifests of a remote checkpoint brought here.

        chains: all that will be asked for; None for any. Raises OSError, ModuleNotFoundError, ValueError.
        """
        if self._mirror is None:
            return Directory(self.path)
        self._mirror.refresh(chains)
        return Directory(self.path, fetch=self._mirror.fetch)

    def writer(
        self,
        schema: CollectionSchema,
        placement: Placement,
        *,
        run_id: str | None = None,
        max_segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        keep: int | None = None,
        quantise: int | None = None,
        compact: int | None = None,
    ) -> StoreWriter:
        """Opens the directory for writing: locks every chain, fences older writers, removes unfinished saves.

        run_id: None takes that of the directory, or a new one if it is empty.
        keep: after each base, only what the newest `keep` intact exact points need is kept; None keeps all.
        quantise: deltas and priority saves hold weights as codes of 8 or 4 bits (None: as they are).
        compact: a thread folds a chain that has more than `compact` increments (base and deltas into a base,
        priority saves into one), and then removes what is not kept; None: never.
        Raises LockedError; SchemaMismatchError naming table and field; CorruptionError; OSError; ValueError.
        """
        return StoreWriter(
            self.path,
            schema,
            placement,
            run_id=run_id,
            max_segment_bytes=max_segment_bytes,
            keep=keep,
            mirror=self._mirror,
            quantise=quantise,
            compact=compact,
        )

    def chain_writer(
        self,
        shard: int | None,
        schema: CollectionSchema,
        placement: Placement,
        *,
        run_id: str | None = None,
        max_segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        takes_over: bool = False,
    ) -> ChainWriter:
        """Opens one chain only (None: the global one), for a process that holds one shard; see `writer`.

        takes_over: does so even while another process, which may be frozen, holds the lock; that one's next
        commit fails.
        """
        chain = naming.GLOBAL if shard is None else naming.shard_chain(shard)
        return ChainWriter(
            self.path,
            chain,
            schema=schema,
            placement=placement,
            run_id=run_id,
            max_segment_bytes=max_segment_bytes,
            mirror=self._mirror,
            takes_over=takes_over,
        )

    def points(self) -> list[RestorePoint]:
        """Returns the exact points, newest first, whose manifests lead to a base. Segments are not read."""
        directory = self.directory()
        found = []
        for manifest, ref in directory.history([]):
            point = RestorePoint(directory=directory, ref=ref, manifest=manifest, mode="exact")
            if manifest.kind in EXACT_KINDS:
                try:
                    point.plan()
                except CorruptionError:
                    continue
                found.append(point)
        return found

    def latest(
        self,
        mode: Mode = "exact",
        *,
        schema: CollectionSchema | None = None,
        placement: Placement | None = None,
    ) -> RestorePoint:
        """Returns the newest point that is intact to the last byte; every file it needs is read for that.

        Beside a writer it looks again when retention has removed what it was reading, a few times.

        "exact": the newest base or delta whose chain is intact. "running": the newest save of any kind with
        intact dense state, and of every shard what is newest and intact.
        schema, placement: of the caller's model.
        Raises NoCheckpointError: nothing valid, with the reasons; SchemaMismatchError; OSError; ValueError.
        """
        if mode not in ("exact", "running"):
            raise ValueError(f"mode: expected exact or running, got {mode!r}")
        return self._undisturbed(
            self.directory, lambda directory: self._newest(directory, mode, schema, placement)
        )

    def _undisturbed(self, look: Callable[[], Directory], read: Callable[[Directory], R]) -> R:
        """Reads again, a few times, when a writer's retention has removed what was read meanwhile."""
        for _ in range(_READINGS - 1):
            directory = look()
            try:
                found = read(directory)
                if not found.skipped or not directory.is_outdated():
                    return found
            except NoCheckpointError:
                if not directory.is_outdated():
                    raise
        return read(look())

    def _newest(
        self,
        directory: Directory,
        mode: Mode,
        schema: CollectionSchema | None,
        placement: Placement | None,
    ) -> RestorePoint:
        skipped: list[str] = []
        for manifest, ref in directory.history(skipped):
            if schema is not None:
                schema.check_same(manifest.schema, str(self.path))
            if placement is not None:
                placement.check_same(manifest.placement, str(self.path))
            if mode == "exact" and manifest.kind not in EXACT_KINDS:
                continue
            point = RestorePoint(directory=directory, ref=ref, manifest=manifest, mode=mode)
            try:
                directory.whole.check_segments(manifest)
                plan = point.plan()
                plan.verify()
            except CorruptionError as error:
                note(skipped, error)
                continue
            return replace(point, skipped=(*skipped, *plan.skipped))
        raise NoCheckpointError(refusal(f"{self}: no checkpoint that can be restored ({mode})", skipped))

    def compact(
        self, *, keep: int | None = None, watch: Watch = lambda _: None
    ) -> tuple[list[Folded], str | None]:
        """Folds every chain, of a directory that no writer has open: base and deltas into a base, priority
        commits into one. Nothing is removed unless `keep` says how many exact points retention is to keep.

        watch: told the bytes read so far by each call; 0 while a segment is being read.
        Returns what was folded, and the error that stopped retention, if any. Raises LockedError,
        NoCheckpointError, CorruptionError, OSError.
        """
        identity = self.directory().whole.identity
        if identity is None:
            raise NoCheckpointError(f"{self.path}: holds no checkpoint")
        with self.writer(identity.schema, identity.placement, run_id=identity.run_id, keep=keep) as writer:
            folded = writer.housekeeping.fold(0, watch)
            writer.housekeeping.prune()
            return folded, writer.housekeeping.retention_error

    def shard_plan(self, shard: int) -> RestorePlan:
        """Returns the newest intact rows of one shard, whatever the global commits say (partial recovery).

        Every byte is verified here. Raises NoCheckpointError, OSError, ValueError.
        """
        chains = [naming.GLOBAL, naming.shard_chain(shard)]
        return self._undisturbed(
            lambda: self.directory(chains),
            lambda d: RestorePlan(mode="running", chains=(running_plan(d.shard(shard), shard),)),
        )
