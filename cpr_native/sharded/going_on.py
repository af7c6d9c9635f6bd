"""The part of a cluster's manager that goes on after a loss: of a shard, of all of them, of the trainers."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from cpr_native.cluster.client import ShardClients, ShardLoss
from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.handle import ShardHandle, ShardLost
from cpr_native.cluster.messages import ShardStatus, WrongIncarnation
from cpr_native.cluster.regroup import regroup
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.errors import CprError
from cpr_native.policy import Policy
from cpr_native.recovery import restore
from cpr_native.recovery.dense import decode
from cpr_native.recovery.gang import Agreement
from cpr_native.recovery.losses import Losses
from cpr_native.recovery.members import DenseMembers
from cpr_native.recovery.pace import Pace
from cpr_native.recovery.report import Cut, RecoveryReport
from cpr_native.sharded.collection import ShardedEmbeddingBagCollection
from cpr_native.sharded.saves import ClusterSaves
from cpr_native.store import CheckpointStore, RestorePoint
from cpr_native.store.manifest import DATA_KINDS, EXACT_KINDS, Manifest

Embeddings = Literal["keep", "rollback"]
GONE = (ShardLost, WrongIncarnation)


class GoesOn(DenseMembers):
    """See `ClusterManager`."""

    pace: Pace
    recoveries: list[RecoveryReport]
    samples_per_hour: float
    steps: int
    samples: int
    _clients: ShardClients
    _coordinator: Coordinator | None
    _gang: Agreement
    _losses: Losses
    _module: ShardedEmbeddingBagCollection
    _patience: float
    _running: bool
    _saves: ClusterSaves
    _spec: ClusterSpec
    _store: CheckpointStore

    @property
    @abc.abstractmethod
    def policy(self) -> Policy:
        """The policy in force."""

    @property
    @abc.abstractmethod
    def pls(self) -> float:
        """Portion of lost lookups so far."""

    def _lost(self, loss: ShardLoss) -> None:
        """Enter the loss of a shard, which is back."""
        status: ShardStatus = self._clients.handle(loss.shard).call("status").result(self._patience)
        attached = status.recovery.source == "memory"
        ranks = self._clients.ranks
        again = loss.resent_lookups * ranks
        lookups = loss.lost_lookups * ranks
        if not attached:
            if self._newest_kind(loss.shard) not in EXACT_KINDS:
                # Rows that the newest saves do not hold went back further.
                lookups = max(0, self._saves.unsaved(loss.shard) - again)
            self._saves.restarted(loss.shard, loss.resent_lookups)
        pls = self._losses.enter(lookups, samples=self.samples)
        self._report(
            (loss.shard,), mode="reattached" if attached else "partial", lost_lookups=lookups, pls=pls,
            rows_restored=sum(status.recovery.rows.values()), rows_reset=sum(status.recovery.reset.values()),
            seconds=loss.seconds, skipped=status.recovery.skipped, refused=status.recovery.refused,
        )  # fmt: skip

    def _newest_kind(self, shard: int) -> str | None:
        """Return the kind of the newest save in a shard's chain."""
        reader = self._store.directory().shard(shard)
        found = reader.newest([])
        at: Manifest | None = None if found is None else found[0]
        while at is not None and at.kind not in DATA_KINDS:
            at = None if at.parent is None else reader.load(at.parent.sequence)[0]
        return None if at is None else at.kind

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Recover, and leave the block, when a shard is lost in it under full recovery.

        For the body of the loop over the `loader` that this manager has: the loop then goes on from the
        position that was restored.
        """
        try:
            yield
        except GONE:
            if self.policy.recovery == "partial" or self._gang.shards > 1:
                raise
            self.recover()

    def recover(self) -> RecoveryReport:
        """Take all shards, the dense side and the data position back to the newest point that is intact.

        Waits for shards that are being started again. Raises ShardLost when one is not back in time, and what
        `Coordinator.rollback` raises; it may be called again then.
        """
        before, started = self.samples, perf_counter()
        self._saves.drop()
        failed = tuple(shard for shard in range(self._spec.shards) if not self._alive(shard))
        point = self._go_back()
        return self._report(
            failed or tuple(range(self._spec.shards)), mode="full", lost_samples=before - point.samples,
            seconds=perf_counter() - started,
        )  # fmt: skip

    def resume(self, *, embeddings: Embeddings = "rollback") -> RecoveryReport | None:
        """Go on in a new trainer process, with the shards as they are or back at the newest point.

        None when nothing was ever committed. "rollback": everything goes back to the newest point.
        "keep": rows stay as the lost trainers left them; the dense side and the data position are those of
        the newest point, so what was trained since then is trained again.
        """
        if self._running:
            raise ValueError("resume() goes before start() and step()")
        if not restore.holds_commits(self._store):
            return None
        started = perf_counter()
        if embeddings == "rollback":
            self._go_back()
        else:
            self._keep_rows()
        self._running = True
        return self._report(
            tuple(range(self._spec.shards)), mode="full", restart=True, seconds=perf_counter() - started
        )

    def _alive(self, shard: int) -> bool:
        try:
            self._clients.handle(shard).call("status").result(1.0)
        except (*GONE, TimeoutError):
            return False
        return True

    def _handles(self) -> list[ShardHandle]:
        """Return a life of every shard that answers, waiting for those that are gone."""
        found = []
        for shard in range(self._spec.shards):
            handle = self._clients.directory.reconnect(shard, self._patience, after=0)
            try:
                handle.call("status").result(self._patience)
            except GONE:
                handle = self._clients.directory.reconnect(shard, self._patience, after=handle.incarnation)
            found.append(handle)
        return found

    def _generation(self, handles: list[ShardHandle]) -> int:
        known: list[int] = [h.call("status").result(self._patience).generation for h in handles]
        return 1 + max(*known, self._clients.generation)

    def _go_back(self) -> RestorePoint:
        went: tuple[int, int] | None = None
        if self._coordinator is not None:
            handles = self._handles()
            generation = self._generation(handles)
            done = self._coordinator.rollback(handles, generation=generation, ranks=self._clients.ranks)
            went = done.point.sequence, generation
        went = self._gang.from_one(went, 0)
        assert went is not None
        point = self._point(went[0])
        self._take(point, generation=went[1], applied=point.step)
        return point

    def _keep_rows(self) -> None:
        went: tuple[int, int, int] | None = None
        if self._coordinator is not None:
            done = regroup(self._handles(), ranks=self._clients.ranks, timeout=self._patience)
            went = self._store.points()[0].sequence, done.generation, done.step
        went = self._gang.from_one(went, 0)
        assert went is not None
        point = self._point(went[0])
        self._take(point, generation=went[1], applied=went[2])

    def _point(self, sequence: int) -> RestorePoint:
        for point in self._store.points():
            if point.sequence == sequence:
                return point
        raise CprError(f"{self._store}: commit {sequence} is not an exact point any more")

    def _take(self, point: RestorePoint, *, generation: int, applied: int) -> None:
        """Take the dense side and the position of a point, and go on as `generation`."""
        state = self._dense.own(decode(bytes(point.dense()["state"])))
        self._dense.check(state)
        self._dense.restore(state)
        self._clients.begin(generation, applied)
        optimizer = self._module.fused_optimizer
        optimizer.follow(replace(optimizer.settings, **_settings(point.engine)))
        self.steps, self.samples = point.info["steps"], point.samples
        self._saves.rewind(
            Cut(step=point.step, samples=point.samples, info=point.info, commit=point.sequence)
        )
        self._losses.reattached(point.info["pls"])
        self.pace.load_state_dict(point.info)

    def _report(self, shards: tuple[int, ...], **fields: Any) -> RecoveryReport:
        made: dict[str, Any] = {"rows_restored": 0, "rows_reset": 0, "skipped": (), **fields}
        report = RecoveryReport(
            shards=shards, step=self.steps, samples=self.samples,
            hours_lost=made.get("lost_samples", 0) / self.samples_per_hour, **made,
        )  # fmt: skip
        self.recoveries.append(report)
        self.pace.recovered(report, self._saves, self.pls)  # type: ignore[arg-type]
        return report


def _settings(engine: Any) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in engine.items()}
