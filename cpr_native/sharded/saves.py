"""The saves of a cluster's job: cuts asked for at a step boundary, finished in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.coordinator import Coordinator
from cpr_native.cluster.global_saves import GlobalCut, GlobalSave
from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.messages import CutMissed
from cpr_native.policy import Policy, SaveKind
from cpr_native.recovery.dense import DenseState, encode
from cpr_native.recovery.gang import Agreement
from cpr_native.recovery.ledger import LookupLedger
from cpr_native.recovery.report import Cut, SaveReason, SaveReport
from cpr_native.recovery.save_books import SaveBooks

MISSED = (CutMissed, ShardLost, TimeoutError)  # a save that came to nothing; the next one has its rows


@dataclass(frozen=True, kw_only=True)
class _InFlight:
    reason: SaveReason
    stall_seconds: float
    done: Future[GlobalSave]


class ClusterSaves(SaveBooks):
    """`SaveBooks` of a cluster; called at the same points in every rank.

    `clients`: this rank's, `coordinator`: of the process of rank 0, None in the others; `dense`: what is
    saved beside the shards' rows; `ledger`: of the lookups of all ranks, is told what commits hold; `gang`:
    of the ranks. `seconds`: that a save may take.
    `missed`: how many saves came to nothing since a shard was lost or too slow.
    """

    def __init__(
        self,
        clients: ShardClients,
        coordinator: Coordinator | None,
        dense: DenseState,
        policy: Policy,
        ledger: LookupLedger,
        gang: Agreement,
        *,
        seconds: float,
        background: bool,
    ) -> None:
        super().__init__(policy)
        self._clients = clients
        self._coordinator = coordinator
        self._dense = dense
        self._ledger = ledger
        self._gang = gang
        self._seconds = seconds
        self._background = background
        self._thread = ThreadPoolExecutor(1, "cpr-cluster-saver")
        self._flying: _InFlight | None = None
        self._counted = np.zeros(clients.shards, np.int64)
        self.missed = 0

    @property
    def busy(self) -> bool:
        """Whether a save is in flight, here."""
        return self._flying is not None

    def mark_due(self) -> None:
        """Note that the policy's next save is due."""
        self.due = True

    def count(self) -> None:
        """Enter the lookups since the last call, of all ranks, in the ledger."""
        now = self._clients.lookups
        fresh, self._counted = now - self._counted, now
        self._ledger.add(np.sum(self._gang.gather(fresh), axis=0))

    def unsaved(self, shard: int) -> int:
        """Return the lookups of a shard that no commit holds; of other ranks as many as of this one."""
        since = int((self._clients.lookups - self._counted)[shard]) * self._clients.ranks
        return int(self._ledger.unsaved[shard]) + since

    def restarted(self, shard: int, resent: int) -> None:
        """Note that a shard came back without its counters; `resent` lookups of this rank are sent again."""
        now = int(self._clients.lookups[shard]) - resent
        self._ledger.restarted(shard, (now - int(self._counted[shard])) * self._clients.ranks)
        self._counted[shard] = now

    def begin(
        self, kind: SaveKind | None, reason: SaveReason, cut: Cut, optimizer: Mapping[str, Any]
    ) -> bool:
        """Ask all shards for a cut after the step that was sent last, and finish it in the background.

        `kind`: None for the policy's. False, with nothing begun, while one is in flight or when a shard can't
        promise it. `optimizer`: settings of the shards' optimizer, JSON values.
        """
        self.settle(wait=False)
        kind = kind or self.policy.kind(self.due_saves)
        if any(self._gang.gather(self.busy)):
            self.coalesced += 1
            return False
        started = perf_counter()
        self.count()
        dense = self._dense.capture()
        asked = self._ask(kind, cut)
        if not self._gang.from_one(asked is not None, 0):
            self.missed += 1
            return False
        info = {**cut.info, "due_saves": self.due_saves + (reason == "due"), "lookups": self._ledger.total}
        unsaved = self._ledger.unsaved

        def finish() -> GlobalSave:
            assert self._coordinator is not None
            assert asked is not None
            data = {"state": encode(dense)}
            # What the shards' commits hold is known only then: their counts are in those.
            noted = {**info, "unsaved_lookups": int(unsaved.sum())}
            return self._coordinator.finish(asked, data, info=noted, engine=optimizer)

        self._fly(reason, perf_counter() - started, finish)
        return True

    def _ask(self, kind: SaveKind, cut: Cut) -> GlobalCut | None:
        if self._coordinator is None:
            return None
        handles = [self._clients.handle(shard) for shard in range(self._clients.shards)]
        try:
            return self._coordinator.begin(
                handles,
                generation=self._clients.generation,
                step=self._clients.step - 1,
                kind=kind,
                policy=self.policy,
                save=self.due_saves,
                samples=cut.samples,
                info={"lookups": self._ledger.total},
                seconds=self._seconds,
            )
        except MISSED:
            return None

    def _fly(self, reason: SaveReason, stall: float, finish: Callable[[], GlobalSave]) -> None:
        if self._coordinator is None:
            return
        self._flying = _InFlight(reason=reason, stall_seconds=stall, done=self._thread.submit(finish))
        if not self._background:
            self.settle()

    def settle(self, *, wait: bool = True) -> None:
        """See `SaveBooks`; a save that was missed is no error."""
        flying = self._flying
        if flying is None or not (wait or flying.done.done()):
            return
        self._flying = None
        try:
            saved = flying.done.result()
        except MISSED:
            self.missed += 1
            self.due |= self._gang.shards == 1 and flying.reason in ("start", "due")
            return
        except BaseException as error:
            self._error = error
            return
        self._note(saved, flying)

    def _note(self, saved: GlobalSave, flying: _InFlight) -> None:
        self._enter(
            SaveReport(
                sequence=saved.sequence,
                kind=saved.kind,
                reason=flying.reason,
                step=saved.step,
                samples=saved.samples,
                rows=sum(sum(shard.rows.values()) for shard in saved.shards),
                bytes_written=saved.bytes_written,
                stall_seconds=flying.stall_seconds + saved.stall_seconds,
                seconds=saved.seconds,
                retention_error=saved.retention_error,
            )
        )
        self._ledger.saved(np.array(saved.lookups, np.int64))
        for shard in saved.shards:
            self._clients.forget(shard.shard, shard.step)

    def drop(self) -> None:
        """Wait for the save in flight, whatever becomes of it."""
        self.settle()
        self._error = None

    def rewind(self, cut: Cut) -> None:
        """Go on from the point that the shards went back to, with nothing due."""
        self.due = False
        self.due_saves = cut.info["due_saves"]
        self.exact_step, self.exact_samples = cut.step, cut.samples
        self._ledger.rewind(cut.info["lookups"])
        self._counted = self._clients.lookups

    def close(self) -> None:
        """Wait for the save in flight and end the thread."""
        self.settle()
        self._thread.shutdown()
