"""Writes one save at a time in its own thread: chunks to the store, commit, then drop what was taken."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Snapshot
from cpr_native.combined import CombinedSnapshot
from cpr_native.errors import CprError
from cpr_native.recovery.dense import encode
from cpr_native.recovery.report import SaveReason, SaveReport

if TYPE_CHECKING:
    from cpr_native.policy import SaveKind
    from cpr_native.store import Save
    from cpr_native.store.part_writer import PartSave


@dataclass(kw_only=True)
class PendingSave:
    """A save begun and not yet written: its snapshot, store side, copy of the dense state, and cut.

    `unsaved`: lookups per shard that no commit contained when it began, [shards]; None: not counted.
    """

    kind: SaveKind
    reason: SaveReason
    step: int
    samples: int
    snapshot: Snapshot | CombinedSnapshot
    save: Save | PartSave
    dense: dict[str, Any]
    info: dict[str, Any]
    unsaved: NDArray[np.int64] | None
    started: float
    stall_seconds: float


@dataclass(frozen=True, kw_only=True)
class SaveDone:
    """A committed save: its report and the lookups it holds, per engine and shard."""

    report: SaveReport
    lookups: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SaveFailed:
    """A save that was undone: why it had begun and the error."""

    reason: SaveReason
    error: BaseException


def _undo(pending: PendingSave) -> None:
    """Drop what was written, and give what the snapshot took back to the tables."""
    try:
        pending.save.abort()
    finally:
        pending.snapshot.abort()


class BackgroundSaver:
    """Writes saves; all methods are called by the training thread.

    Each save has a thread of its own, which is not a daemon: a process that exits without `close()` still
    finishes the save in flight.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._reason: SaveReason | None = None
        self._outcome: SaveDone | SaveFailed | None = None

    @property
    def busy(self) -> bool:
        """Whether a save was submitted and its outcome not yet collected."""
        return self._thread is not None

    @property
    def owes(self) -> bool:
        """Whether a save that was due is in flight: without its commit it is due again."""
        return self.busy and self._reason in ("start", "due")

    def submit(self, pending: PendingSave) -> None:
        """Start to write `pending`; the one before must have been collected.

        Raises RuntimeError when no thread can be started; `pending` is undone then.
        """
        self._reason = pending.reason
        self._thread = threading.Thread(target=self._run, args=(pending,), name="cpr-saver")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            _undo(pending)
            raise

    def collect(self, *, wait: bool) -> SaveDone | SaveFailed | None:
        """Return the outcome of the last save, once; None without one, or when it runs and not `wait`."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        outcome, self._thread, self._outcome = self._outcome, None, None
        return outcome

    def _run(self, pending: PendingSave) -> None:
        try:
            self._outcome = self._write(pending)
        except BaseException as error:
            self._outcome = SaveFailed(reason=pending.reason, error=error)

    def _write(self, pending: PendingSave) -> SaveDone:
        snapshot, save = pending.snapshot, pending.save
        try:
            if isinstance(snapshot, CombinedSnapshot):
                rows, counts = snapshot.add_to(save)
            else:
                rows, of_shards = save.add_snapshot(snapshot)
                counts = [of_shards]
            lookups = np.array(counts, np.int64)
            dense = {"state": encode(pending.dense)}
            unsaved = 0 if pending.unsaved is None else int(pending.unsaved.sum() - lookups.sum())
            if snapshot.status != "complete":
                raise CprError(f"step {pending.step}: rows were written from outside while they were saved")
            result = save.commit(dense=dense, info={**pending.info, "unsaved_lookups": unsaved})
            snapshot.commit()
        except BaseException:
            _undo(pending)
            raise
        report = SaveReport(
            sequence=result.sequence,
            kind=pending.kind,
            reason=pending.reason,
            step=pending.step,
            samples=pending.samples,
            rows=rows,
            bytes_written=result.bytes_written,
            stall_seconds=pending.stall_seconds + snapshot.stall_seconds,
            seconds=perf_counter() - pending.started,
            retention_error=result.retention_error,
            compaction_error=result.compaction_error,
        )
        return SaveDone(report=report, lookups=lookups)
