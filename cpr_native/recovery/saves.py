"""The saves of a job: begun at a step boundary, handed to the writer thread, entered in the books."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.policy import Policy, SaveKind, clears_dirty
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState
from cpr_native.recovery.gang import Gang
from cpr_native.recovery.last_saved import LastSaved, Priorities
from cpr_native.recovery.ledger import LookupLedger
from cpr_native.recovery.opening import open_writer
from cpr_native.recovery.report import Cut, SaveReason
from cpr_native.recovery.save_books import SaveBooks
from cpr_native.recovery.saver import BackgroundSaver, PendingSave, SaveFailed
from cpr_native.recovery.shared_state import Left, exact_of
from cpr_native.shard import Restored, Shard
from cpr_native.store import CheckpointStore, Placement, StoreWriter
from cpr_native.store.checks import check_count
from cpr_native.store.part_writer import PartWriter
from cpr_native.store.quantise import check_bits


class Saves(SaveBooks):
    """One save in flight at most; called by the training thread.

    `tables`, `dense`: what is saved; `policy`: which rows;
    `placement`: rows to shards; `ledger`: is told what commits contain; `background`: False writes each save
    before `begin` returns; `keep`: exact points that retention leaves, None for all; `quantise`: bits of
    weights in all but bases, None for as they are; `compact`: most increments of a chain, None for any
    number; `distances`: is told how far the rows of a table are from
    what was last saved, when the policy asks; `gang`: whose processes begin each save together. `writer` is
    set while it is open.
    """

    def __init__(
        self,
        tables: TrainedCollection,
        dense: DenseState,
        policy: Policy,
        placement: Placement,
        ledger: LookupLedger | None,
        *,
        background: bool,
        keep: int | None,
        compact: int | None,
        quantise: int | None = None,
        distances: Callable[[int, NDArray[np.float32]], None] | None = None,
        gang: Gang | None = None,
    ) -> None:
        super().__init__(policy)
        for name, value in (("keep", keep), ("compact", compact)):
            if value is not None:
                check_count(name, value, 1)
        self._tables = tables
        self._engine = tables.engine
        self._dense = dense
        self._distances = distances
        self._gang = gang
        self._placement = placement
        self._blocks = tables.blocks(placement)
        self._last_saved = LastSaved(tables, policy)
        self._ledger = ledger
        self._background = background
        check_bits(quantise)
        self._keep = keep
        self._compact = compact
        self._quantise = quantise
        self._saver = BackgroundSaver()
        self.writer: StoreWriter | PartWriter | None = None
        self._needs_base = True
        self._commit: int | None = None

    def open(self, store: CheckpointStore, *, counts: bool = True) -> None:
        """Become the writer of `store` and count lookups from now on; raises what `store.writer` raises.

        `counts`: what the engines' counters hold already is unsaved.
        """
        self.writer = open_writer(
            store, self._tables, self._placement, self._gang,
            keep=self._keep, compact=self._compact, quantise=self._quantise,
        )  # fmt: skip
        self._last_saved.keep()
        if self._ledger is not None:
            self._ledger.watch([part.module for part in self._tables.parts], self._blocks, counts=counts)

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        return self._saver.busy

    def mark_due(self) -> None:
        """Note that the policy's next save is due; counted as coalesced when one is in flight."""
        self.coalesced += self.busy
        self.due = True

    def begin_due(self, cut: Cut, reason: SaveReason = "due") -> None:
        """Begin the save that is due, unless one is in flight; it stays due when that raises."""
        if self.due and (self._gang is not None or not self.busy):
            self.due = False
            try:
                self.begin(None, reason, cut)
            except BaseException:
                self.due = True
                raise

    def request(self, kind: SaveKind | None, cut: Cut, *, wait: bool) -> bool:
        """Begin a save that the user asks for; False, and counted as coalesced, when one is in flight.

        `wait`: waits for the one in flight first and for this one then.
        """
        self.settle(wait=wait)
        self.raise_error()
        if (self._gang is None and self.busy) or not self.begin(kind, "requested", cut):
            self.coalesced += 1
            return False
        if wait:
            self.flush()
        return True

    def begin(self, kind: SaveKind | None, reason: SaveReason, cut: Cut) -> bool:
        """Take a snapshot and a copy of the dense state now and write them in the background.

        `kind`: None for the policy's; a base takes the place of a kind that the chain does not permit now.
        False, with nothing begun, while a process of the gang still writes one. Raises what the snapshot or
        the store's writer raises, RuntimeError without a thread, with nothing begun.
        """
        writer = self.require_writer()
        kind = kind or self.policy.kind(self.due_saves)
        needs_base = self._needs_base or not writer.permits(kind)
        if self._gang is not None:
            states = self._gang.gather((self.busy, needs_base))
            if any(busy for busy, _ in states):
                return False
            needs_base = any(needed for _, needed in states)
        if needs_base:
            kind = "base"
        started = perf_counter()
        scalars = self._tables.module.optimizer_scalars()
        save = writer.begin(kind, step=cut.step, samples=cut.samples, engine=scalars)
        try:
            self._tables.sync()
            self.count()
            ranking = Priorities(self.due_saves, self._last_saved, self._distances)
            selections = self.policy.selections(self._engine.tables, kind, ranking)
            dense = self._dense.capture()
            snapshot = self._engine.begin(
                selections,
                clears_dirty=clears_dirty(kind),
                shard_rows=self._blocks,
                blocking=not self._tables.module.fused,
            )
        except BaseException:
            save.abort()
            raise
        pending = PendingSave(
            kind=kind,
            reason=reason,
            step=cut.step,
            samples=cut.samples,
            snapshot=snapshot,
            save=save,
            dense=dense,
            info={
                **cut.info,
                "due_saves": self.due_saves + (reason == "due"),
                "lookups": self._ledger.total if self._ledger else 0,
            },
            unsaved=None if self._ledger is None else self._ledger.unsaved,
            started=started,
            stall_seconds=perf_counter() - started,
        )
        self._saver.submit(pending)
        if self._ledger is not None:
            self._ledger.in_flight = True
        if not self._background:
            self.settle()
        return True

    def settle(self, *, wait: bool = True) -> None:
        """See `SaveBooks`; a save that was due and failed stays due."""
        outcome = self._saver.collect(wait=wait)
        if outcome is None:
            return
        if self._ledger is not None:
            self._ledger.in_flight = False
        if isinstance(outcome, SaveFailed):
            self._error = outcome.error
            self.due |= self._gang is None and outcome.reason in ("start", "due")
            return
        report = outcome.report
        self._enter(report)
        self._commit = report.sequence
        if self._ledger is not None:
            self._ledger.saved(outcome.lookups)
        if report.kind != "priority":
            self._needs_base = False

    def count(self) -> None:
        """Count what engines on a device have looked up, before their rows are restored."""
        if self._ledger is not None:
            self._ledger.read()

    def restored(self, parts: Sequence[Restored], shards: Sequence[Shard]) -> None:
        """Go on after the rows of `shards` were restored as `parts` say."""
        self._last_saved.restored(shards)
        if any(part.broken for part in parts):
            self.require_base()

    def require_base(self) -> None:
        """Make the next save a base: a damaged base or delta was left out of the rows in memory."""
        self.require_writer().require_base()
        self._needs_base = True

    def rewind(self, cut: Cut, *, exact: bool) -> None:
        """Go on from a restored point, with nothing due; `exact`: it is no priority commit."""
        self.due = False
        self.due_saves = cut.info["due_saves"]
        self._commit = cut.commit
        self.exact_step, self.exact_samples = cut.step if exact else -1, cut.samples
        self._needs_base = False
        self._last_saved.keep()
        if self._ledger is not None:
            self._ledger.rewind(cut.info["lookups"])

    def books(self) -> dict[str, Any]:
        """Return where this is, as JSON values, for a process that goes on with the same memory."""
        writer = self.require_writer()
        return {
            "run": writer.run_id,
            "incarnation": writer.incarnation,
            "commit": self._commit,
            "due": self.due or self._saver.owes,
            "due_saves": self.due_saves,
            "exact_step": self.exact_step,
            "exact_samples": self.exact_samples,
            "needs_base": self._needs_base,
            "ledger": None if self._ledger is None else self._ledger.state_dict(),
        }

    def reattach(self, left: Left) -> None:
        """Go on from the books of a process that died and the saves that were committed without them."""
        books, writer = left.books, self.require_writer()
        writer.go_on()
        self.due, self.due_saves, self._commit = books["due"], books["due_saves"], books["commit"]
        self.exact_step, self.exact_samples = books["exact_step"], books["exact_samples"]
        self._needs_base = books["needs_base"]
        if self._ledger is not None and books["ledger"] is not None:
            self._ledger.load_state_dict(books["ledger"])
        exact = exact_of(left)
        if exact is not None:
            self.exact_step, self.exact_samples, self._needs_base = exact.step, exact.samples, False
        if left.newer:
            self.due, self._commit = False, left.newer[0].sequence
        if left.damaged:
            self.require_base()

    def rejoin(self, books: Mapping[str, Any], restored: Restored) -> None:
        """Go on with rows that were restored alone, from the books of a process that has kept its own."""
        self.require_writer().go_on()
        self.due, self.due_saves, self._commit = False, books["due_saves"], books["commit"]
        self.exact_step, self.exact_samples = books["exact_step"], books["exact_samples"]
        self._needs_base = books["needs_base"]
        if restored.broken:
            self.require_base()

    def require_writer(self) -> StoreWriter | PartWriter:
        """Return the writer; raises ValueError before the manager has started and after it was closed."""
        if self.writer is None:
            raise ValueError("the manager is not running: call start(), resume() or step() first")
        return self.writer

    def close(self) -> None:
        """Wait for the save in flight and release the store."""
        self.settle()
        self._tables.module.observe_updates(None)
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
            self._last_saved.free()
