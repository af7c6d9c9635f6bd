"""Points of the whole job: the same step of every shard, with the dense state, committed last of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import monotonic
from typing import Any

from numpy.typing import NDArray

from cpr_native.cluster.asking import ask, raise_all, within
from cpr_native.cluster.global_saves import GlobalCut, GlobalSave, RolledBack
from cpr_native.cluster.handle import Pending, ShardHandle
from cpr_native.cluster.messages import Committed, CutMissed, CutRequest, RollbackRequest
from cpr_native.errors import CorruptionError, CprError, NoCheckpointError
from cpr_native.policy import Policy, SaveKind
from cpr_native.store import CheckpointStore, CollectionSchema, Placement, RestorePoint
from cpr_native.store.housekeeping import Housekeeping
from cpr_native.store.manifest import Ref

_CUTS_A_LIFE = 2**32


class Coordinator(AbstractContextManager["Coordinator"]):
    """The one writer of the global chain of a run: on the trainers' side, in the process of rank 0.

    Making it fences an older one, frozen perhaps, and goes on with the history that is there; `run_id` is
    that of the directory, or a new one. `timeout`: seconds for an answer that no save or restore delays.
    `keep`: after each base, only what the newest `keep` exact points and the newest state of each shard need
    is kept, which `finish` reads and verifies first; None keeps all.
    Methods are called by one thread at a time; `finish` may run in another than `begin`.
    Raises what `CheckpointStore.chain_writer` raises, ValueError for `keep` with a URL.
    """

    def __init__(
        self,
        store: CheckpointStore,
        schema: CollectionSchema,
        placement: Placement,
        *,
        run_id: str | None = None,
        timeout: float = 30.0,
        keep: int | None = None,
    ) -> None:
        if keep is not None and store.url is not None:
            raise ValueError(f"keep: expected a folder, which retention can read, got {store.url}")
        self._store = store
        self._schema = schema
        self._placement = placement
        self._timeout = timeout
        self._cuts = 0
        self._flying: GlobalCut | None = None
        self._writer = store.chain_writer(None, schema, placement, run_id=run_id, takes_over=True)
        self._writer.go_on()
        self._housekeeping = Housekeeping(store.path, [self._writer], keep=keep, compact=None)
        self.run_id = self._writer.identity.run_id

    def begin(
        self,
        handles: Sequence[ShardHandle],
        *,
        generation: int,
        step: int,
        kind: SaveKind,
        policy: Policy | None = None,
        save: int = 0,
        samples: int = 0,
        info: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
    ) -> GlobalCut:
        """Have every shard cut after `step`: call it after a rank's update of it, before any of the next.

        Returns once all have promised it. A base takes the place of a kind that the global chain does not
        permit. `seconds`: until all commits must stand; the others as in `CutRequest`.
        Raises CutMissed, and every shard has given it up, unless all promise; ValueError.
        """
        if self._flying is not None:
            raise CutMissed(f"cut {self._flying.number} is not finished")
        if [handle.shard for handle in handles] != [*range(self._placement.shards)]:
            raise ValueError(f"handles: expected one of each of {self._placement.shards} shards")
        self._cuts += 1
        number = self._writer.incarnation * _CUTS_A_LIFE + self._cuts
        if not self._writer.permits(kind):
            kind = "base"
        started = monotonic()
        cut = GlobalCut(
            number=number,
            step=step,
            kind=kind,
            samples=samples,
            handles=tuple(handles),
            deadline=started + seconds,
            started=started,
        )
        requests = [
            CutRequest(
                number=number,
                generation=generation,
                incarnation=handle.incarnation,
                step=step,
                kind=kind,
                policy=policy if kind == "priority" else None,
                save=save,
                samples=samples,
                info=dict(info or {}),
                seconds=seconds,
            )
            for handle in handles
        ]
        _, errors = ask(
            handles, lambda handle: handle.call("cut", requests[handle.shard]), within(self._timeout)
        )
        if errors:
            self.abandon(cut, "not every shard promised it")
            raise_all(f"cut {number} of step {step} was not promised", errors)
        self._flying = cut
        return cut

    def abandon(self, cut: GlobalCut, reason: str) -> None:
        """Give a cut up in every shard that can be reached; what is not committed is merged back there."""
        self._flying = None
        ask(cut.handles, lambda handle: handle.call("abandon", cut.number, reason), within(self._timeout))

    def finish(
        self,
        cut: GlobalCut,
        dense: Mapping[str, NDArray[Any] | bytes],
        *,
        info: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> GlobalSave:
        """Wait for every shard's commit, then commit the point: `dense` state, `info` and `engine` (JSON).

        If one shard fails, all others give the cut up, or have committed it for themselves, which then
        counts for partial recoveries alone. Raises CutMissed; ValueError, TypeError, FencedError, OSError
        of the global commit: there is no such point then.
        """
        left = within(cut.deadline - monotonic() + self._timeout)
        try:
            done, errors = ask(
                cut.handles,
                lambda handle: handle.call("committed", cut.number, left()),
                left,
                stops=lambda: self.abandon(cut, "another shard has given it up"),
            )
            if errors:
                self.abandon(cut, "another shard has given it up")
                raise_all(f"cut {cut.number} of step {cut.step} was given up", errors)
            return self._commit(cut, [done[handle.shard] for handle in cut.handles], dense, info, engine)
        finally:
            self._flying = None

    def _commit(
        self,
        cut: GlobalCut,
        shards: Sequence[Committed],
        dense: Mapping[str, NDArray[Any] | bytes],
        info: Mapping[str, Any] | None,
        engine: Mapping[str, Any] | None,
    ) -> GlobalSave:
        for committed in shards:
            if (committed.step, committed.number) != (cut.step, cut.number):
                raise CprError(f"shard {committed.shard}: expected step {cut.step}, got {committed}")
        kind = "base" if all(committed.kind == "base" for committed in shards) else cut.kind
        save = self._writer.begin(kind, step=cut.step, samples=cut.samples, engine=engine)
        try:
            save.add_dense(dense)
            commits = {c.shard: Ref(sequence=c.sequence, crc=c.crc) for c in shards}
            ref = save.prepare(commits=commits, info={**(info or {}), "cut": cut.number})
            save.publish()
        except BaseException:
            save.abort()
            raise
        self._housekeeping.committed(kind)
        return GlobalSave(
            sequence=ref.sequence,
            kind=kind,
            step=cut.step,
            samples=cut.samples,
            shards=tuple(shards),
            bytes_written=save.manifest.bytes + sum(committed.bytes_written for committed in shards),
            stall_seconds=max((committed.stall_seconds for committed in shards), default=0.0),
            seconds=monotonic() - cut.started,
            retention_error=self._housekeeping.retention_error,
        )

    def rollback(
        self, handles: Sequence[ShardHandle], *, generation: int, ranks: int = 1, seconds: float = 600.0
    ) -> RolledBack:
        """Take every shard back to the newest point that is intact, where `ranks` trainers go on.

        Each shard verifies its part first; a point with damage is passed over. `generation`: of the trainers
        from then on, above any before, and again above it after a call that failed.
        `seconds`: for each shard to verify and to restore. The caller restores the dense state and the data
        position that the point has.
        Raises NoCheckpointError, and nothing was changed; CprError naming shards that failed or were lost:
        then all must go back again.
        """
        started, skipped = monotonic(), list[str]()
        if self._flying is not None:
            self.abandon(self._flying, "the job goes back")
        point = self._intact_point(handles, seconds, skipped)
        commits = point.manifest.commits

        def send(handle: ShardHandle) -> Pending[Any]:
            ref = commits[handle.shard]
            request = RollbackRequest(
                generation=generation,
                incarnation=handle.incarnation,
                step=point.step,
                ranks=ranks,
                sequence=ref.sequence,
                crc=ref.crc,
            )
            return handle.call("rollback", request)

        done, errors = ask(handles, send, within(seconds))
        if errors:
            raise_all(f"going back to step {point.step} failed", errors, CprError)
        self._writer.rollback(point.ref, commits=commits)
        return RolledBack(
            point=point,
            shards=tuple(done[handle.shard] for handle in handles),
            skipped=tuple(skipped),
            seconds=monotonic() - started,
        )

    def _intact_point(
        self, handles: Sequence[ShardHandle], seconds: float, skipped: list[str]
    ) -> RestorePoint:
        for point in self._store.points():
            commits = point.manifest.commits
            try:
                point.dense()
            except CorruptionError as error:
                skipped.append(str(error))
                continue
            _, errors = ask(
                handles,
                partial(_verify, commits),
                within(seconds),
            )
            damage = {s: e for s, e in errors.items() if isinstance(e, CorruptionError | NoCheckpointError)}
            if len(damage) < len(errors):
                raise_all(f"step {point.step} could not be verified", errors, CprError)
            if not errors:
                return point
            skipped.extend(str(error) for error in damage.values())
        reasons = "".join(f"; {reason}" for reason in skipped)
        raise NoCheckpointError(f"{self._store}: no point that every shard can go back to{reasons}")

    def close(self) -> None:
        """Free the global chain; a second call does nothing."""
        self._writer.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _verify(commits: Mapping[int, Ref], handle: ShardHandle) -> Pending[Any]:
    return handle.call("verify", commits[handle.shard].sequence, commits[handle.shard].crc)
