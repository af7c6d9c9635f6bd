"""The part of a manager that keeps its job in shared memory and goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cpr_native.recovery import restore
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.progress import Progress
from cpr_native.recovery.report import RecoveryReport
from cpr_native.recovery.shared_state import Left, SharedState
from cpr_native.shard import Restored, Shard
from cpr_native.store import CheckpointStore


class Lasting(Progress):
    """A manager's state in memory, counted at each step, reported on after each recovery."""

    shards: tuple[Shard, ...]
    recoveries: list[RecoveryReport]
    steps: int
    samples: int
    samples_per_hour: float
    _shared: SharedState | None
    _store: CheckpointStore
    _tables: TrainedCollection

    def _books(self) -> dict[str, Any]:
        """Return what a process that goes on with the same memory must know, as JSON values."""
        job = {"steps": self.steps, "samples": self.samples, "pls": self._losses.pls}
        return {**job, "last_due": self.pace.last, "pace": self.pace.state_dict(), **self._saves.books()}

    def _leave(self) -> None:
        if self._shared is not None:
            self._shared.commit(self._books())

    def _stepped(self) -> None:
        if self._shared is not None:
            self._shared.stepped(self._books)

    def _invalidate(self) -> None:
        """Before rows are restored: until `_leave`, a new process goes on from the store."""
        if self._shared is not None:
            self._shared.invalidate()

    def _begin_anew(self) -> None:
        if self._shared is not None:
            self._shared.begin_anew()

    @property
    def _refused(self) -> str | None:
        return None if self._shared is None else self._shared.refused

    def _reattached(self, started: float) -> RecoveryReport | None:
        """Go on with what a process left in shared memory; None, with nothing changed, if that can't be."""
        left = None if self._shared is None else self._shared.find(self._store)
        if left is None:
            return None
        every = tuple(range(len(self.shards)))
        return self._go_on(left, lambda doubtful: self._report(every, started, [], **doubtful))

    def _go_on(self, left: Left, report: Callable[[dict[str, Any]], RecoveryReport]) -> RecoveryReport:
        """Go on with what was left; `report` makes the report of it from its fields."""
        assert self._shared is not None
        self._tables.sync()
        self._saves.open(self._store, counts=False)
        try:
            doubtful = self._shared.attach(left)
            self._saves.reattach(left)
        except BaseException:
            self._saves.close()
            raise
        self.steps, self.samples = left.books["steps"], left.books["samples"]
        self._losses.reattached(left.books["pls"])
        self.pace.load_state_dict(left.books["pace"])
        made = report({"mode": "reattached", "restart": True, "doubtful_rows": doubtful})
        self.pace.last = left.books["last_due"]
        self._shared.commit(self._books(), ends_step=False)
        return made

    def _report(
        self, failed: tuple[int, ...], started: float, restored: Sequence[Restored], **fields: Any
    ) -> RecoveryReport:
        fields |= {"step": self.steps, "samples": self.samples}
        lost = fields.get("lost_samples", 0) / self.samples_per_hour
        report = restore.report(restored, started, shards=failed, hours_lost=lost, **fields)
        self.recoveries.append(report)
        self.pace.recovered(report, self._saves, self.pls)
        return report
