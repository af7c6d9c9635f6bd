"""Writing one chain: lock, incarnation, saves. Usable alone, by the process that holds one shard."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

from cpr_native.errors import CorruptionError, CprError, ForkedProcessError
from cpr_native.store import files, naming
from cpr_native.store.background import Syncing
from cpr_native.store.chain import (
    ChainReader,
    Identity,
    Position,
    exact_ref,
    last_incarnation,
    only_epochs,
)
from cpr_native.store.chain_save import ChainSave
from cpr_native.store.checks import check_count, check_json
from cpr_native.store.directory import Directory
from cpr_native.store.lock import ChainLock
from cpr_native.store.manifest import DATA_KINDS, Kind, Manifest, Ref, SegmentRecord
from cpr_native.store.placement import Placement
from cpr_native.store.publish import prepare_manifest, publish_manifest
from cpr_native.store.quantise import check_bits
from cpr_native.store.remote_mirror import Mirror
from cpr_native.store.remote_writer import RemoteWriter
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.unfinished import highest_sequence, remove_unfinished

DEFAULT_SEGMENT_BYTES = 64 * 2**20


class ChainWriter(AbstractContextManager["ChainWriter"]):
    """The one writer of a chain: takes its lock, fences older writers by an epoch, removes their remains.

    Over an existing history only a base may be saved until `rollback` has attached to a commit of it.
    Methods are called from one thread at a time and only in the process that opened it.

    Raises LockedError; SchemaMismatchError for the chain of another run, model or placement; CorruptionError
    when manifests exist and none of this run is intact; OSError. `mirror`: of a remote checkpoint whose one
    chain is written; `remote`: uploads the commits of all chains. `takes_over`: a writer that holds the lock
    is fenced by the epoch, instead of LockedError.
    """

    def __init__(
        self,
        root: Path,
        chain: str,
        *,
        schema: CollectionSchema,
        placement: Placement,
        run_id: str | None = None,
        max_segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        mirror: Mirror | None = None,
        remote: RemoteWriter | None = None,
        quantise: int | None = None,
        takes_over: bool = False,
    ) -> None:
        check_bits(quantise)
        self._quantise = quantise
        placement.check_covers(schema)
        check_count("max_segment_bytes", max_segment_bytes, 1)
        self.shard = naming.shard_of(chain)
        if self.shard is not None and self.shard >= placement.shards:
            raise IndexError(f"shard {self.shard} of {placement.shards}")
        self.chain = chain
        self.path = naming.chain_path(root, chain)
        self._root = root
        self.max_segment_bytes = max_segment_bytes
        self._pid = os.getpid()
        self._reserving = threading.Lock()
        self._committed: set[int] = set()
        self._epoch = 0
        self._save: ChainSave | None = None
        self._remote = remote
        self._own_remote: RemoteWriter | None = None
        for name in (naming.MANIFESTS, naming.SEGMENTS):
            files.make_directory(self.path / name)
        self._lock = ChainLock(self.path / naming.LOCK, required=not takes_over)
        try:
            if mirror is not None:
                self._remote = self._own_remote = RemoteWriter(mirror, [chain])
            self._open(schema, placement, run_id)
            if self._own_remote is not None:
                self._own_remote.opened()
        except BaseException:
            self._close()
            raise

    def _open(self, schema: CollectionSchema, placement: Placement, run_id: str | None) -> None:
        directory = Directory(self._root)
        reader = directory.whole if self.shard is None else directory.shard(self.shard)
        found = reader.identity
        run_id = run_id or (found.run_id if found else uuid.uuid4().hex)
        self.identity = Identity(run_id=run_id, schema=schema, placement=placement)
        if found is not None:
            self.identity.check_same(found, str(self.path))
        if reader.sequences and reader.newest([]) is None:
            raise CorruptionError(f"{self.path}: no manifest is intact; restore or move the directory away")
        self._begin_incarnation(reader)
        remove_unfinished(self.path)

    def _begin_incarnation(self, reader: ChainReader) -> None:
        """Commits an epoch, and another one if an older writer has committed in between.

        From an epoch on older writers stop; what one of them reported before it is part of this history, even
        where no lock keeps two writers apart.
        """
        seen: set[int] = set()
        self.incarnation = 0
        while not self._committed or not seen.issuperset(reader.sequences):
            newest = reader.newest([], but=self._committed)
            self.incarnation = 1 + max(self.incarnation, last_incarnation(reader))
            self._position = (
                Position(newest[1], newest[0].parent, exact_ref(*newest)) if newest else Position()
            )
            self.attached = only_epochs(reader, newest)
            used = 0 if self._remote is None else self._remote.used(self.chain)
            self._next_sequence = 1 + max(used, highest_sequence(self.path))
            at = (newest[0].step, newest[0].samples) if newest else (0, 0)
            self._commit("epoch", *at, self._position)
            seen = {*reader.sequences, *self._committed}
            reader = ChainReader(self._root, self.chain, self.identity)

    def reserve(self) -> int:
        """Returns a sequence number that no commit has had or will get again."""
        with self._reserving:
            self._next_sequence += 1
            return self._next_sequence - 1

    @property
    def owned(self) -> bool:
        """Whether this is the process that opened it; a forked child is not."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        """Raises ForkedProcessError in a forked child: the lock is the parent's."""
        if not self.owned:
            raise ForkedProcessError(f"{self.path}: the writer belongs to process {self._pid}")

    def permits(self, kind: str) -> bool:
        """Whether a save of `kind` may be committed now: always a base, a delta only after one."""
        if kind == "delta":
            return self.attached and self._position.exact is not None
        return self.attached or kind == "base"

    def require_base(self) -> None:
        """Makes deltas be refused until the next base: rows in memory are not what the chain says."""
        self._position.exact = None

    def go_on(self) -> None:
        """Attaches to the history as it is: memory holds its rows, and what changed since is dirty."""
        self.attached = True

    def begin(
        self,
        kind: str,
        *,
        step: int,
        samples: int,
        engine: Mapping[str, Any] | None = None,
        syncing: Syncing | None = None,
    ) -> ChainSave:
        """Starts a save; nothing is visible before its `commit`.

        kind: "base", "delta" or "priority". step, samples: of training at the snapshot. engine: JSON values.
        syncing: makes its segments durable; None: each as it is written.
        Raises ValueError, TypeError; CprError when another save is open or the kind is not permitted.
        """
        self.check_process()
        if kind not in DATA_KINDS:
            raise ValueError(f"kind: expected one of {DATA_KINDS}, got {kind!r}")
        check_count("step", step, 0)
        check_count("samples", samples, 0)
        engine = {} if engine is None else dict(engine)
        check_json("engine", engine)
        if self._save is not None:
            raise CprError(f"{self.path}: a save is open already")
        if not self.permits(kind):
            over = "the directory has a history; save a base, or roll back to a restored point first"
            reason = "before a base" if self.attached else f"yet: {over}"
            raise CprError(f"{self.path}: a {kind} save is not permitted {reason}")
        manifest = self._manifest(
            cast(Kind, kind), self.reserve(), step, samples, self._position, engine=engine
        )
        self._save = self._new_save(manifest, syncing or Syncing(None, 0), self._closed, self._quantise)
        return self._save

    def _new_save(
        self, manifest: Manifest, syncing: Syncing, closed: Callable[[], None], quantise: int | None = None
    ) -> ChainSave:
        return ChainSave(
            self.path, manifest, self.max_segment_bytes, syncing, self._prepare, self._publish, closed,
            self._sealed(), quantise,
        )  # fmt: skip

    def begin_replacement(self, newest: Manifest, replaced: Ref, oldest: Manifest | None = None) -> ChainSave:
        """Starts a commit to read in the place of `replaced`, beside any save and on any thread.

        newest: `replaced` itself. oldest: the first of a run of priority commits; None: it becomes a base.
        """
        self.check_process()
        at, position = (newest.step, newest.samples), Position()
        if oldest is not None:
            position = Position(oldest.parent, oldest.grandparent, oldest.exact_parent)
        kind: Kind = "base" if oldest is None else "priority"
        manifest = self._manifest(kind, self.reserve(), *at, position, replaces=replaced)
        return self._new_save(manifest, Syncing(None, 0), lambda: None)

    def reader(self) -> ChainReader:
        """Returns the chain as it is on disk now."""
        fetch = None if self._remote is None else self._remote.fetch
        return ChainReader(self._root, self.chain, self.identity, threads=1, fetch=fetch)

    def _sealed(self) -> Callable[[SegmentRecord], object] | None:
        return None if self._remote is None else partial(self._remote.sealed, self.chain)

    def rollback(
        self, target: Ref | None, *, exact: bool = True,
        commits: Mapping[int, Ref] | None = None, info: Mapping[str, Any] | None = None,
    ) -> Ref:  # fmt: skip
        """Commits that history goes on from `target` (None: from the present head), and attaches to it.

        exact: False when the rows restored are not what base and deltas give: the next save must be a base.
        commits: of the shards, for the global chain. info: JSON values.
        Raises CprError when a save is open; CorruptionError, FencedError, OSError.
        """
        self.check_process()
        if self._save is not None:
            raise CprError(f"{self.path}: a save is open; commit or abort it before a rollback")
        reader = ChainReader(self._root, self.chain, self.identity)
        target = target or self._position.head
        if target is None:
            raise CprError(f"{self.path}: nothing to roll back to")
        manifest = reader.readings(target)[0]
        position = Position(target, manifest.parent, exact_ref(manifest, target) if exact else None)
        more = {"commits": commits or {}, "info": dict(info or {})}
        ref = self._commit("rollback", manifest.step, manifest.samples, position, **more)
        self.attached = True
        return ref

    def _commit(self, kind: Kind, step: int, samples: int, position: Position, **more: Any) -> Ref:
        manifest = self._manifest(kind, self.reserve(), step, samples, position, **more)
        ref = self._prepare(manifest)
        self._publish(manifest, ref)
        return ref

    def _prepare(self, manifest: Manifest) -> Ref:
        self.check_process()
        return prepare_manifest(self.path, manifest)

    def _publish(self, manifest: Manifest, ref: Ref) -> None:
        self.check_process()
        publish_manifest(self.path, manifest, self._committed, self._epoch)
        if self._remote is not None:
            self._remote.publish(self.chain, manifest)
        self._epoch = self._epoch or manifest.sequence
        self._committed.add(manifest.sequence)
        if manifest.replaces is not None:
            return
        self._position = Position(ref, manifest.parent, exact_ref(manifest, ref))
        if manifest.kind == "base":
            self.attached = True

    def _closed(self) -> None:
        self._save = None

    def close(self) -> None:
        """Drops an open save and frees the lock; a second call does nothing."""
        try:
            if self._save is not None and self.owned:
                self._save.abort()
        finally:
            self._close()

    def _close(self) -> None:
        if self._own_remote is not None and self.owned:
            self._own_remote.close()
        self._lock.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _manifest(
        self, kind: Kind, sequence: int, step: int, samples: int, position: Position, **more: Any
    ) -> Manifest:
        return Manifest(
            chain=self.chain, run_id=self.identity.run_id, sequence=sequence, incarnation=self.incarnation,
            kind=kind, step=step, samples=samples, parent=position.head, grandparent=position.head_parent,
            exact_parent=position.exact, schema=self.identity.schema, placement=self.identity.placement,
            **more,
        )  # fmt: skip
