"""Writing a checkpoint directory: every shard's chain, and last the global one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cpr_native._native import Snapshot
from cpr_native.errors import CprError
from cpr_native.store import naming
from cpr_native.store.add_chunks import add_chunks
from cpr_native.store.background import Syncing, Workers
from cpr_native.store.chain import ChainReader, Identity
from cpr_native.store.chain_save import ChainSave
from cpr_native.store.chain_writer import DEFAULT_SEGMENT_BYTES, ChainWriter
from cpr_native.store.chains_writer import ChainsWriter
from cpr_native.store.checks import check_json
from cpr_native.store.commit_info import CommitInfo
from cpr_native.store.directory import RestorePoint
from cpr_native.store.housekeeping import Housekeeping
from cpr_native.store.manifest import Ref
from cpr_native.store.placement import Placement
from cpr_native.store.quantise import check_bits
from cpr_native.store.remote_mirror import Mirror
from cpr_native.store.remote_writer import RemoteWriter
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.segment import SegmentPart

_MAX_THREADS = 8  # they wait for the disk: with as many, one sync of its journal serves all shards


class Save:
    """One save over all shards; made by `StoreWriter.begin`.

    As a context manager it is aborted when the block raises or ends without `commit`.
    """

    def __init__(
        self,
        writer: StoreWriter,
        whole: ChainSave,
        shards: dict[int, ChainSave],
        workers: Workers,
        syncing: Syncing,
    ) -> None:
        self._writer = writer
        self._global = whole
        self._shards = shards
        self._workers = workers
        self._syncing = syncing

    @property
    def shards(self) -> int:
        """Their number."""
        return len(self._shards)

    def add(self, part: SegmentPart) -> None:
        """Takes a part over; it is closed as soon as its bytes are durable, or by `abort`.

        At most `max_segment_bytes` are gathered over all shards, beyond it the shard that holds most is
        written, and about as much again is written and not yet durable.
        Raises ValueError, TypeError, IndexError for a part that does not fit (it stays the caller's);
        OSError: then only `abort` is of use.
        """
        if part.shard not in self._shards:
            raise IndexError(f"part: shard {part.shard} of {len(self._shards)}")
        self._shards[part.shard].add(part)
        while sum(save.gathered_bytes for save in self._shards.values()) >= self._writer.max_segment_bytes:
            max(self._shards.values(), key=lambda save: save.gathered_bytes).write()

    def add_snapshot(self, snapshot: Snapshot) -> tuple[int, list[int]]:
        """Takes all rows of a snapshot of the writer's tables; returns their number, and lookups per shard.

        Rows are gathered, summed and written in native code, in the background and within the memory that
        `add` keeps to. The snapshot's shards are the placement's, its tables those of the schema, in order.
        Raises OSError and what reading the snapshot raises: then only `abort` is of use.
        """
        if self._writer.quantise is not None and self._global.manifest.kind != "base":
            return add_chunks(self, snapshot, [t.name for t in self._global.manifest.schema.tables])
        rows, lookups = 0, [0] * len(self._shards)
        missing = [save.missing for save in self._shards.values()]
        for gathered in snapshot.gather(self._writer.max_segment_bytes, missing):
            try:
                rows += sum(gathered.rows.values())
                lookups[gathered.shard] += gathered.lookups
                self._shards[gathered.shard].add_gathered(gathered)
            except BaseException:
                gathered.close()
                raise
        return rows, lookups

    def flush(self) -> None:
        """Makes all parts held durable and closes them, for a snapshot without memory; raises OSError."""
        for save in self._shards.values():
            save.write()
        self._syncing.wait()

    def commit(
        self, dense: Mapping[str, NDArray[Any] | bytes], info: Mapping[str, Any] | None = None
    ) -> CommitInfo:
        """Makes the save durable: the commits of all shards, then the global one.

        dense: named arrays and byte strings (parameters, optimizer, RNG, data position). info: JSON values.
        An error leaves the save uncommitted as a whole (commits of single shards may stand; they only count
        for running restores): call `abort` and take the snapshot's rows back.
        Raises ValueError, TypeError, FencedError, OSError.
        """
        check_json("info", {} if info is None else dict(info))
        self._global.add_dense(dense)
        self.flush()
        ref = self._commit(info)
        rows: dict[str, int] = {}
        size = 0
        for save in self._shards.values():
            size += save.manifest.bytes
            for table, count in save.manifest.rows.items():
                rows[table] = rows.get(table, 0) + count
        manifest = self._global.manifest
        housekeeping = self._writer.housekeeping
        housekeeping.committed(manifest.kind)
        return CommitInfo(
            sequence=ref.sequence,
            kind=manifest.kind,
            step=manifest.step,
            samples=manifest.samples,
            bytes_written=size + manifest.bytes,
            rows=rows,
            retention_error=housekeeping.retention_error,
            compaction_error=housekeeping.compaction_error,
        )

    def _commit(self, info: Mapping[str, Any] | None) -> Ref:
        """Commits the shards side by side; the global commit gets its name when all of theirs are durable."""
        refs = self._workers.run([save.prepare for save in self._shards.values()])
        commits = dict(zip(self._shards, refs, strict=True))
        whole = self._workers.submit(partial(self._global.prepare, commits=commits, info=info))
        try:
            self._workers.run([save.publish for save in self._shards.values()])
        finally:
            whole.exception()  # ended before anything is aborted
        ref = whole.result()
        self._global.publish()
        return ref

    def abort(self) -> None:
        """Drops the save: closes all parts and removes its files. Does nothing after `commit`."""
        for save in (*self._shards.values(), self._global):
            save.abort()

    def __enter__(self) -> Save:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class StoreWriter(ChainsWriter):
    """The one writer of a whole checkpoint directory; made by `CheckpointStore.writer`.

    Not shared between threads, but `begin` may be called in one and the save finished in another.
    """

    def __init__(
        self,
        path: Path,
        schema: CollectionSchema,
        placement: Placement,
        *,
        run_id: str | None = None,
        max_segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        keep: int | None = None,
        mirror: Mirror | None = None,
        quantise: int | None = None,
        compact: int | None = None,
    ) -> None:
        check_bits(quantise)
        self.path = path
        self.max_segment_bytes = max_segment_bytes
        self.quantise = quantise
        self._workers: Workers | None = None
        self._chains = []
        self._remote: RemoteWriter | None = None
        chains = (naming.GLOBAL, *map(naming.shard_chain, range(placement.shards)))
        with ExitStack() as stack:
            self.housekeeping = Housekeeping(path, self._chains, keep=keep, compact=compact)
            if mirror is not None:
                self._remote = RemoteWriter(mirror)
                self.housekeeping.sweep = self._remote.sweep
                stack.callback(self._remote.close)
            for chain in chains:  # all are checked before the first is written
                found = ChainReader(path, chain).identity
                if found is not None:
                    run_id = run_id or found.run_id
                    own = Identity(run_id=run_id, schema=schema, placement=placement)
                    own.check_same(found, str(naming.chain_path(path, chain)))
            for chain in chains:
                writer = ChainWriter(
                    path,
                    chain,
                    schema=schema,
                    placement=placement,
                    run_id=run_id,
                    max_segment_bytes=max_segment_bytes,
                    remote=self._remote,
                    quantise=quantise,
                )
                stack.enter_context(writer)
                self._chains.append(writer)
                run_id = writer.identity.run_id
            if self._remote is not None:
                self._remote.opened()
            self._stack = stack.pop_all()
        self.run_id = self._chains[0].identity.run_id
        self.incarnation = self._chains[0].incarnation

    def begin(self, kind: str, *, step: int, samples: int, engine: Mapping[str, Any] | None = None) -> Save:
        """Starts a save of `kind` "base", "delta" or "priority"; nothing is visible before its `commit`.

        step, samples: of training at the snapshot. engine: JSON values (optimizer scalars).
        Raises ValueError, TypeError; CprError when another save is open or the kind is not permitted;
        RuntimeError when no thread can be started.
        """
        self._chains[0].check_process()
        if self._workers is None:
            self._workers = Workers(min(_MAX_THREADS, len(self._chains)))
        syncing = Syncing(self._workers, self.max_segment_bytes)
        saves: list[ChainSave] = []
        try:
            for chain in self._chains:
                saves.append(chain.begin(kind, step=step, samples=samples, engine=engine, syncing=syncing))
        except BaseException:
            for save in saves:
                save.abort()
            raise
        return Save(self, saves[0], dict(enumerate(saves[1:])), self._workers, syncing)

    def rollback(self, point: RestorePoint) -> None:
        """Commits in every chain that history goes on from `point`; call it before training resumes from it.

        Raises CprError when a save is open; CorruptionError, FencedError, OSError.
        """
        with self.paused():
            self._rollback(point)

    def _rollback(self, point: RestorePoint) -> None:
        plan = point.plan()
        heads = {chain.shard: chain for chain in plan.chains}
        if sorted(heads) != list(range(len(self._chains) - 1)):
            raise CprError(
                f"{self.path}: the point has shards {sorted(heads)}, the writer {len(self._chains) - 1}"
            )
        for shard, writer in enumerate(self._chains[1:]):
            writer.rollback(heads[shard].head, exact=heads[shard].exact is not None)
        self._chains[0].rollback(
            point.ref, exact=not plan.broken, commits={shard: chain.head for shard, chain in heads.items()}
        )

    def close(self) -> None:
        """Drops an open save and frees the locks; a second call does nothing."""
        self.housekeeping.close()
        self._stack.close()
        if self._workers is not None and self._chains[0].owned:
            self._workers.close()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
