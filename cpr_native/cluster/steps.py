"""Applies steps in order, begins cuts between them, and keeps lookups apart from what writes rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

from cpr_native.cluster.cuts import Cut
from cpr_native.cluster.messages import CutMissed, ProtocolError, Tag, WrongGeneration, WrongIncarnation
from cpr_native.cluster.order import StepOrder
from cpr_native.cluster.tables import RowGradients, ShardTables
from cpr_native.errors import CprError

_SECONDS = 60.0  # for a lookup or an update that runs to end


class StepWatcher(Protocol):
    """What is told of steps, by the thread that applies them."""

    def begins(self, updates: Sequence[RowGradients]) -> None:
        """The rows of `updates` are about to be written."""
        ...

    def ended(self) -> None:
        """A step is applied, and in the watermarks."""
        ...


class StepRunner:
    """The state of a shard's protocol; `state` guards it. Its methods may be called by any thread.

    `order` has the watermarks; `generation` of the trainers and `error`, which is final and None so far, are
    set by the owner, in `exclusively`. `fatal` is called once with an error of an update.
    """

    def __init__(
        self,
        tables: ShardTables,
        order: StepOrder,
        *,
        incarnation: int,
        generation: int,
        watcher: StepWatcher,
        fatal: Callable[[BaseException], None] | None,
    ) -> None:
        self.state = threading.Condition()
        self.order = order
        self.generation = generation
        self.incarnation = incarnation
        self.error: BaseException | None = None
        self.skipped = 0
        self._tables = tables
        self._name = f"shard {tables.shard}"
        self._watcher = watcher
        self._fatal = fatal
        self._scheduled: dict[int, dict[str, Any]] = {}
        self._cut: Cut | None = None
        self._paused = False
        self._readers = 0
        self._writing = False

    def check_life(self, incarnation: int) -> None:
        """Raise WrongIncarnation, or the error that is final; `state` is held."""
        if self.error is not None:
            raise CprError(f"{self._name}: {type(self.error).__name__}: {self.error}")
        if incarnation != self.incarnation:
            raise WrongIncarnation(
                f"{self._name}: incarnation: expected {self.incarnation}, got {incarnation}"
            )

    def check(self, tag: Tag) -> None:
        """Raise ProtocolError unless a message is of this life, this generation and one of its ranks."""
        self.check_life(tag.incarnation)
        if tag.generation != self.generation:
            raise WrongGeneration(
                f"{self._name}: generation of trainers: expected {self.generation}, got {tag.generation}"
            )
        if not 0 <= tag.rank < self.order.ranks:
            raise ProtocolError(f"{self._name}: rank {tag.rank} of {self.order.ranks}")
        if tag.step < 1:
            raise ProtocolError(f"{self._name}: step: expected at least 1, got {tag.step}")

    def check_newer(self, generation: int, incarnation: int) -> None:
        """Raise WrongIncarnation, or WrongGeneration unless `generation` is above the present one.

        Whatever error there is: what begins a generation may mend it.
        """
        with self.state:
            if incarnation != self.incarnation:
                self.check_life(incarnation)
            if generation <= self.generation:
                raise WrongGeneration(
                    f"{self._name}: generation of trainers: expected one above {self.generation}, got "
                    f"{generation}"
                )

    @contextmanager
    def reading(self, tag: Tag, needed: int, seconds: float) -> Iterator[None]:
        """Hold the rows still, once step `needed` is applied; raises ProtocolError, TimeoutError."""
        limit = monotonic() + seconds
        with self.state:
            self.check(tag)
            while self.order.applied < needed or self._writing:
                left = limit - monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"{self._name}: a lookup of step {tag.step} waited {seconds} s for step {needed}: "
                        f"{self.order.applied} is applied, {self.order.missing()} are the ranks whose next "
                        "update is missing"
                    )
                self.state.wait(left)
                self.check(tag)
            self._readers += 1
        try:
            yield
        finally:
            with self.state:
                self._readers -= 1
                self.state.notify_all()

    @contextmanager
    def exclusively(self, what: str) -> Iterator[None]:
        """Keep lookups and updates away while the block runs; what waited goes on after it.

        Raises TimeoutError, naming `what` waited, when those that run do not end.
        """
        with self.state:
            self._begin_writing(what)
        try:
            yield
        finally:
            self._end_writing()
        self.advance()

    def _begin_writing(self, what: str) -> None:
        """Wait until nobody writes or reads, and write; `state` is held."""
        if not self.state.wait_for(lambda: not self._writing, _SECONDS):
            raise TimeoutError(f"{self._name}: {what} waited {_SECONDS} s for an update to end")
        self._writing = True
        if not self.state.wait_for(lambda: self._readers == 0, _SECONDS):
            self._writing = False
            self.state.notify_all()
            raise TimeoutError(f"{self._name}: {what} waited {_SECONDS} s for lookups to end")

    def _end_writing(self) -> None:
        with self.state:
            self._writing = False
            self.state.notify_all()

    def take(self, tag: Tag, sent: RowGradients) -> int:
        """Take a rank's update, apply what is complete now; returns the rank's watermark.

        One that is here already is not taken again. Raises ProtocolError.
        """
        with self.state:
            self.check(tag)
            if not self.order.is_known(tag.rank, tag.step):
                self.order.put(tag.rank, tag.step, sent)
        self.advance()
        with self.state:
            self.check(tag)
            return self.order.watermarks[tag.rank]

    def schedule(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Set hyperparameters from `step` on, raises ProtocolError for one applied; `state` is held."""
        if step <= self.order.applied:
            raise ProtocolError(f"{self._name}: step {step} is applied already")
        self._scheduled.setdefault(step, {}).update(scalars)

    def forget(self) -> None:
        """Drop hyperparameters of steps to come; `state` is held."""
        self._scheduled.clear()

    def plan_cut(self, cut: Cut) -> None:
        """Have `cut` begin after its step; raises CutMissed. `state` is held; `advance` comes next."""
        if self._cut is not None:
            self._cut.expire()
            if not self._cut.ended:
                raise CutMissed(f"{self._name}: cut {self._cut.request.number} is still in flight")
        if self.order.applied > cut.request.step:
            raise CutMissed(
                f"{self._name}: cut {cut.request.number}: expected to be asked for before step "
                f"{cut.request.step + 1} is applied, got {self.order.applied} applied"
            )
        self._cut = cut

    @property
    def cut(self) -> Cut | None:
        """The cut in flight; `state` is held."""
        return None if self._cut is None or self._cut.ended else self._cut

    def settle_cut(self, reason: str) -> None:
        """Give the cut in flight up and wait for its end; raises TimeoutError."""
        with self.state:
            cut = self.cut
        if cut is not None:
            cut.abandon(reason)
            cut.join(_SECONDS)

    def _due_cut(self) -> Cut | None:
        cut = self.cut
        if cut is None or cut.begun or self.order.applied < cut.request.step:
            return None
        if self.order.applied > cut.request.step:  # a rank skipped steps that it lost
            cut.abandon(f"step {self.order.applied} came without it")
            return None
        cut.expire()
        return None if cut.ended else cut

    def advance(self) -> None:
        """Apply every step that is complete and begin the cut that is due, unless another thread does.

        Raises what an update raises; that is final.
        """
        while True:
            with self.state:
                if self._writing or self._paused or self.error is not None:
                    return  # whoever writes goes on after it
                cut = self._due_cut()
                due = self.order.due()
                if cut is None and due is None:
                    return
                self._begin_writing("an update")
            try:
                if cut is not None:
                    self.begin_cut(cut)
                elif due is not None:
                    self._apply(*due)
            except BaseException as error:
                with self.state:
                    self.error = error
                if self._fatal is not None:
                    self._fatal(error)
                raise
            finally:
                self._end_writing()

    def begin_cut(self, cut: Cut) -> None:
        """Take the snapshot of a cut now, while nothing else runs."""
        cut.begin({"generation": self.generation, "watermarks": list(self.order.watermarks)})

    def pause(self) -> None:
        """Apply no step from now on; updates are taken and wait."""
        self._paused = True

    def _apply(self, step: int, updates: list[RowGradients]) -> None:
        for at in sorted(at for at in self._scheduled if at <= step):
            self._tables.set_scalars(self._scheduled.pop(at))
        self._watcher.begins(updates)
        done = self._tables.update(updates)
        with self.state:
            self.skipped += not done
            self.order.done(step)
        self._watcher.ended()
