"""Writing one shard of a checkpoint directory, in step with the processes that write the others.

They meet in the directory alone: the process of shard 0 makes the global commit as soon as all shards have
theirs, and the others see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from cpr_native._native import Snapshot
from cpr_native.errors import CprError
from cpr_native.store import naming
from cpr_native.store.chain import ChainReader
from cpr_native.store.chain_save import ChainSave
from cpr_native.store.chain_writer import DEFAULT_SEGMENT_BYTES, ChainWriter
from cpr_native.store.chains_writer import ChainsWriter
from cpr_native.store.checks import check_json
from cpr_native.store.commit_info import CommitInfo
from cpr_native.store.directory import RestorePoint
from cpr_native.store.housekeeping import Housekeeping
from cpr_native.store.manifest import Ref
from cpr_native.store.placement import Placement
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.segment import SegmentPart

T = TypeVar("T")

_MEETING = "meeting"  # in the info of a shard's commit: which save of all shards it belongs to
_POLL_S = 0.02
_POLL_SHARE = 0.1  # of the time waited so far: looking lists and reads a chain


class PartSave:
    """One save of a shard; made by `PartWriter.begin`. `whole` is None but in the process of shard 0."""

    def __init__(self, writer: PartWriter, own: ChainSave, whole: ChainSave | None, meeting: str) -> None:
        self._writer = writer
        self._own = own
        self._whole = whole
        self._meeting = meeting

    @property
    def shards(self) -> int:
        """Those of the job."""
        return self._own.manifest.placement.shards

    def add(self, part: SegmentPart) -> None:
        """Takes a part over; see `Save.add`."""
        self._own.add(part)
        if self._own.gathered_bytes >= self._writer.max_segment_bytes:
            self._own.write()

    def flush(self) -> None:
        """Makes all parts held durable and closes them; raises OSError."""
        self._own.flush()

    def add_snapshot(self, snapshot: Snapshot) -> tuple[int, list[int]]:
        """Takes all rows of a snapshot of this shard's tables; returns their number, and lookups per shard.

        Every row of it is in this shard by its number. Raises what `Save.add_snapshot` does.
        """
        shard, rows = self._writer.shard, 0
        lookups = [0] * self.shards
        missing = [-1] * shard + [self._own.missing]
        for gathered in snapshot.gather(self._writer.max_segment_bytes, missing):
            try:
                rows += sum(gathered.rows.values())
                lookups[shard] += gathered.lookups
                self._own.add_gathered(gathered, self._writer.tables)
            except BaseException:
                gathered.close()
                raise
        return rows, lookups

    def commit(
        self, dense: Mapping[str, NDArray[Any] | bytes], info: Mapping[str, Any] | None = None
    ) -> CommitInfo:
        """Commits this shard, and returns when the global commit, of all shards, is durable.

        dense: of the global commit, which the process of shard 0 makes; the others' is left out. info: of
        the shard's, and in the process of shard 0 of the global one too.
        Raises TimeoutError when another shard's commit, or the global one, is not there in time: the
        save counts as failed, as with every error that `Save.commit` raises.
        """
        info = {} if info is None else dict(info)
        check_json("info", info)
        if self._whole is not None:
            self._whole.add_dense(dense)
        manifest, ref = self._own.commit(info={**info, _MEETING: self._meeting})
        if self._whole is None:
            sequence = self._writer.wait_for_whole(ref)
            size = 0
        else:
            commits = self._writer.commits_of(self._meeting, ref)
            sequence = self._whole.prepare(commits=commits, info=info).sequence
            self._whole.publish()
            size = self._whole.manifest.bytes
        housekeeping = self._writer.housekeeping
        housekeeping.committed(manifest.kind)
        return CommitInfo(
            sequence=sequence,
            kind=manifest.kind,
            step=manifest.step,
            samples=manifest.samples,
            bytes_written=manifest.bytes + size,
            rows=dict(manifest.rows),
            retention_error=housekeeping.retention_error,
            compaction_error=housekeeping.compaction_error,
        )

    def abort(self) -> None:
        """Drops the save as `Save.abort` does; this shard's commit, if made, counts for running restores."""
        self._own.abort()
        if self._whole is not None:
            self._whole.abort()


class PartWriter(ChainsWriter):
    """The writer of one shard of a directory, of shard 0 the global chain's too.

    tables: names of the tables of this shard in the order of its snapshots. run_id: that of all; None: of the
    directory, or a new one, for shard 0, which opens first. incarnation: None for shard 0, for the others its
    `incarnation`, which stands for this life of the job. limit: seconds that a save waits for the others'.
    keep: as in `CheckpointStore.writer`; shard 0 removes what no kept point needs, of all chains. compact:
    each folds its own chain.
    Not shared between threads, but `begin` may be called in one and the save finished in another.
    Raises what `CheckpointStore.writer` does.
    """

    def __init__(
        self,
        path: Path,
        schema: CollectionSchema,
        placement: Placement,
        *,
        shard: int,
        tables: list[str],
        run_id: str | None = None,
        incarnation: int | None = None,
        limit: float = 120.0,
        max_segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        keep: int | None = None,
        compact: int | None = None,
    ) -> None:
        if (incarnation is None) != (shard == 0):
            raise ValueError(f"incarnation: expected None for shard 0 alone, got {incarnation} for {shard}")
        self.path = path
        self.shard = shard
        self.tables = tables
        self.max_segment_bytes = max_segment_bytes
        self._limit = limit
        self._placement = placement
        self._meetings = 0
        self._chains = []
        with ExitStack() as stack:
            for chain in [naming.GLOBAL] * (shard == 0) + [naming.shard_chain(shard)]:
                writer = ChainWriter(
                    path,
                    chain,
                    schema=schema,
                    placement=placement,
                    run_id=run_id,
                    max_segment_bytes=max_segment_bytes,
                )
                self._chains.append(stack.enter_context(writer))
                run_id = writer.identity.run_id
            self._own = self._chains[-1]
            self.housekeeping = Housekeeping(
                path, self._chains, keep=keep if shard == 0 else None, compact=compact
            )
            self._stack = stack.pop_all()
        self.run_id = self._own.identity.run_id
        self.incarnation = self._chains[0].incarnation if incarnation is None else incarnation

    def begin(
        self, kind: str, *, step: int, samples: int, engine: Mapping[str, Any] | None = None
    ) -> PartSave:
        """Starts a save of `kind` at `step`; all processes begin the same ones, in the same order.

        Raises what `StoreWriter.begin` does; the save still counts as begun.
        """
        self._meetings += 1
        meeting = f"{self.run_id}:{self.incarnation}:{self._meetings}"
        saves: list[ChainSave] = []
        try:
            for chain in self._chains:
                saves.append(chain.begin(kind, step=step, samples=samples, engine=engine))
        except BaseException:
            for save in saves:
                save.abort()
            raise
        return PartSave(self, saves[-1], saves[0] if self.shard == 0 else None, meeting)

    def commits_of(self, meeting: str, own: Ref) -> dict[int, Ref]:
        """Returns every shard's commit of a save; raises TimeoutError, naming those that have none."""
        found = {self.shard: own}

        def missing() -> bool | None:
            for shard in range(self._placement.shards):
                if shard not in found and (ref := self._commit_of(shard, meeting)) is not None:
                    found[shard] = ref
            return True if len(found) == self._placement.shards else None

        def message() -> str:
            lacking = sorted(set(range(self._placement.shards)) - set(found))
            return f"{self.path}: shards {lacking} did not commit within {self._limit:g} s"

        self._poll(missing, message, self._limit)
        return dict(sorted(found.items()))

    def _commit_of(self, shard: int, meeting: str) -> Ref | None:
        reader = ChainReader(self.path, naming.shard_chain(shard), self._own.identity)
        newest = reader.newest([])
        if newest is None or newest[0].info.get(_MEETING) != meeting:
            return None
        return newest[1]

    def wait_for_whole(self, own: Ref) -> int:
        """Returns the number of the global commit with this shard's commit `own`; raises TimeoutError."""

        def found() -> int | None:
            reader = ChainReader(self.path, naming.GLOBAL, self._own.identity)
            newest = reader.newest([])
            if newest is None or newest[0].commits.get(self.shard) != own:
                return None
            return newest[1].sequence

        def message() -> str:
            return f"{self.path}: there was no global commit of the save within {2 * self._limit:g} s"

        return self._poll(found, message, 2 * self._limit)  # whoever makes it has the others to wait for

    def _poll(self, look: Callable[[], T | None], message: Callable[[], str], limit: float) -> T:
        begin = time.monotonic()
        while True:
            if (found := look()) is not None:
                return found
            waited = time.monotonic() - begin
            if waited >= limit:
                raise TimeoutError(message())
            time.sleep(min(max(_POLL_S, _POLL_SHARE * waited), limit - waited))

    def rollback(self, point: RestorePoint, meet: Callable[[], object]) -> None:
        """Commits that history goes on from `point`, shard by shard and then the global chain.

        meet: returns when all processes have called it. Raises what `StoreWriter.rollback` does.
        """
        heads = {chain.shard: chain for chain in point.plan().chains}
        if sorted(heads) != list(range(self._placement.shards)):
            raise CprError(
                f"{self.path}: the point has shards {sorted(heads)}, the job {self._placement.shards}"
            )
        own = heads[self.shard]
        with self.paused():
            self._own.rollback(own.head, exact=own.exact is not None)
            meet()
            if self.shard == 0:
                exact = not any(chain.broken for chain in heads.values())
                commits = {shard: chain.head for shard, chain in heads.items()}
                self._chains[0].rollback(point.ref, exact=exact, commits=commits)

    def close(self) -> None:
        """Drops an open save and frees the locks; a second call does nothing."""
        self.housekeeping.close()
        self._stack.close()
