"""`SaveBooks`: what a job knows of its saves, whoever makes them."""

from __future__ import annotations

import abc

from cpr_native.policy import Policy
from cpr_native.recovery.report import SaveReport


class SaveBooks(abc.ABC):
    """The books of the saves of a job, one in flight at most; used by the training thread.

    `policy`: may be replaced by one of another fraction. `due`: the policy's next save is; `due_saves`: how
    many that were due have been committed; `coalesced`: left out since one was in flight; `exact_step`,
    `exact_samples`: of the newest commit that is an exact point, -1 and 0 before; `committed`: in order.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.due = False
        self.due_saves = 0
        self.coalesced = 0
        self.exact_step = -1
        self.exact_samples = 0
        self.committed: list[SaveReport] = []
        self._error: BaseException | None = None

    @abc.abstractmethod
    def settle(self, *, wait: bool = True) -> None:
        """Enter the save in flight in the books once it has ended; an error is kept for `raise_error`."""

    def _enter(self, report: SaveReport) -> None:
        """Enter a save that has been committed."""
        self.committed.append(report)
        self.due_saves += report.reason == "due"
        if report.kind != "priority":
            self.exact_step, self.exact_samples = report.step, report.samples

    def raise_error(self) -> None:
        """Raise the error of a save that failed, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self) -> None:
        """Wait for the save in flight; raises its error."""
        self.settle()
        self.raise_error()
