"""`ShardLink`: what one trainer knows of one shard, across the lives of the shard's process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.handle import Pending, ShardDirectory, ShardHandle, ShardLost
from cpr_native.cluster.messages import QueueFull, Resumed, RowIds, Tag, WrongIncarnation
from cpr_native.cluster.sending import Sender, SentUpdate, ShardLoss
from cpr_native.cluster.waiting import SLICE, waited

T = TypeVar("T")

_LIVES = 8  # of a shard, that one call may see end
_PAUSE = 0.005  # seconds, before a full queue or a watermark is looked at again

# What a call meets when its shard's process is another one, or none, by now.
_GONE = (ShardLost, WrongIncarnation)


class ShardLink:
    """Calls of one trainer to one shard, from one thread at a time; `ShardClients` says what they raise.

    `meanwhile` is called now and then in waits for other ranks: one of them may wait for this rank to notice
    that another shard was lost.
    """

    def __init__(self, directory: ShardDirectory, shard: int, sender: Sender) -> None:
        self.shard = shard
        self.total = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self._lost_until = 0  # up to which lost steps are counted
        self._directory = directory
        self._sender = sender
        self._kept: deque[SentUpdate] = deque()
        self._lookups: deque[tuple[int, int]] = deque()  # of each step since the last commit
        self._scalars: list[tuple[int, dict[str, float]]] = []
        self._pending_scalars: deque[Pending[None]] = deque()
        self._sign: tuple[ShardHandle, Pending[Any]] | None = None
        self.handle = self._first_life()

    @property
    def kept(self) -> int:
        """Updates that are not applied, as far as is known here."""
        return len(self._kept)

    def begin(self) -> None:
        """Drop all that is kept, and go on with the present life."""
        self._kept.clear()
        self._lookups.clear()
        self._scalars.clear()
        self._pending_scalars.clear()
        self._lost_until = 0
        self.handle = self._first_life()

    def try_lookup(self, step: int, rows: RowIds) -> tuple[ShardHandle, Pending[NDArray[np.float32]] | None]:
        """Ask the present life, which is returned too; None if it is gone."""
        try:
            return self.handle, self.handle.lookup(self._tag(step), rows)
        except _GONE:
            return self.handle, None

    def looked_up(
        self,
        step: int,
        rows: RowIds,
        sent: tuple[ShardHandle, Pending[NDArray[np.float32]] | None],
    ) -> NDArray[np.float32]:
        """Wait for the answer to `sent`, or ask the next life and wait for its answer."""
        for _ in range(_LIVES):
            handle, pending = sent
            try:
                if pending is None:
                    raise ShardLost(f"shard {self.shard}, incarnation {handle.incarnation}: lost")
                return waited(pending, self._sender.timeout, self.meanwhile)
            except _GONE as error:
                self._next_life(handle, error)
            sent = self.try_lookup(step, rows)
        raise ShardLost(f"shard {self.shard}: {_LIVES} of its lives ended during one lookup")

    def notice(self) -> None:
        """Go on with the next life if the present one is gone; waits for no answer of it."""
        handle = self.handle
        try:
            if self._sign is None or self._sign[0] is not handle:
                self._sign = (handle, handle.call("status"))
            self._sign[1].result(0.0)
            self._sign = None
        except TimeoutError:
            return
        except _GONE as error:
            self._sign = None
            self._next_life(handle, error)

    def keep(self, update: SentUpdate) -> None:
        """Take charge of the next step's update: it is sent by `send`, or told to the next life."""
        lookups = int(update.multiplicity.sum(dtype=np.int64))
        self.total += lookups
        self._lookups.append((update.step, lookups))
        self._kept.append(update)

    def send(self) -> None:
        """Send what was kept and not sent yet."""
        self.carefully(self._send_unsent)

    def reap(self, most: int) -> None:
        """Take the answers that are there; wait for the oldest while more than `most` are missing."""

        def reap() -> None:
            self._send_unsent()
            self._reap(most)

        self.carefully(reap)

    def settle(self, limit: float) -> None:
        """Return when everything kept is applied; TimeoutError at monotonic time `limit`."""
        self.reap(0)
        looked = monotonic()
        while self._kept:
            # Whoever sent the last update of a step heard that it is applied, the others did not.
            status = self.call("status")
            self._applied(status.watermarks[self._sender.rank])
            if not self._kept:
                return
            if monotonic() > limit:
                raise TimeoutError(
                    f"shard {self.shard}: step {self._kept[0].step} of rank {self._sender.rank} is not "
                    "applied: other ranks have not sent theirs, or a cut holds it up"
                )
            if monotonic() > looked + SLICE:
                self.meanwhile()
                looked = monotonic()
            sleep(_PAUSE)

    def set_scalars(self, scalars: Mapping[str, float]) -> None:
        """Set hyperparameters from the next step on; a refusal is raised by a later call."""
        self._scalars.append((self._sender.step, dict(scalars)))
        oldest = self._next_step()
        while len(self._scalars) > 1 and self._scalars[1][0] <= oldest:
            (_, older), (step, newer) = self._scalars[:2]
            self._scalars[:2] = [(step, {**older, **newer})]
        step, handle = self._sender.step, self.handle

        def send() -> None:
            if self.handle is handle:  # else the next life has been told
                self._send_scalars(step, scalars)

        self.carefully(send)

    def call(self, method: str, *args: Any) -> Any:
        """Call any method that may be repeated, and wait for its answer."""

        def ask() -> Any:
            return waited(self.handle.call(method, *args), self._sender.timeout, self.meanwhile)

        return self.carefully(ask)

    def forget(self, step: int) -> None:
        """Note that lookups up to `step` can't be lost any more."""
        while self._lookups and self._lookups[0][0] <= step:
            self._lookups.popleft()

    def carefully(self, action: Callable[[], T]) -> T:
        """Return what `action` does, done once more after each loss of the shard."""
        for _ in range(_LIVES):
            handle = self.handle
            try:
                return action()
            except _GONE as error:
                self._next_life(handle, error)
        raise ShardLost(f"shard {self.shard}: {_LIVES} of its lives ended during one call")

    def _first_life(self) -> ShardHandle:
        try:
            return self._directory.handle(self.shard)
        except ShardLost:
            return self._directory.reconnect(self.shard, self._sender.patience, after=0)

    def _tag(self, step: int) -> Tag:
        return Tag(self._sender.generation, step, self._sender.rank, self.handle.incarnation)

    def _next_step(self) -> int:
        """The first step of which the shard is not known to have this rank's update."""
        return self._kept[0].step if self._kept else self._sender.step

    def _send_unsent(self) -> None:
        for update in self._kept:
            if update.pending is None:
                self._send(update)

    def _send(self, update: SentUpdate) -> None:
        update.pending, update.acknowledged = None, False
        update.pending = self.handle.update(
            self._tag(update.step), update.rows, update.gradient, update.multiplicity
        )

    def _send_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        handle, generation = self.handle, self._sender.generation
        sent = handle.call("set_scalars", generation, handle.incarnation, step, dict(scalars))
        self._pending_scalars.append(sent)

    def _applied(self, step: int) -> None:
        while self._kept and self._kept[0].step <= step:
            self._kept.popleft()

    def _reap(self, most: int) -> None:
        timeout = self._sender.timeout
        while self._pending_scalars:
            self._pending_scalars[0].result(timeout)
            self._pending_scalars.popleft()
        limit = monotonic() + timeout
        while waiting := [update for update in self._kept if not update.acknowledged]:
            oldest = waiting[0]
            assert oldest.pending is not None
            try:
                if len(waiting) > most:
                    ack = waited(oldest.pending, timeout, self.meanwhile)
                else:
                    ack = oldest.pending.result(0.0)
            except TimeoutError:
                if len(waiting) > most:
                    raise
                return
            except QueueFull:
                if monotonic() > limit:
                    raise
                self.meanwhile()
                sleep(_PAUSE)
                for update in waiting:  # those after it were refused too, for the gap
                    self._send(update)
                continue
            oldest.acknowledged = True
            self._applied(ack.applied)

    def _next_life(self, lost: ShardHandle, error: BaseException) -> None:
        """Go on with the life after `lost`, unless that was done already."""
        if self.handle is not lost:
            return
        sender = self._sender
        if not sender.resumes:
            raise error
        started = monotonic()
        first = self._next_step()
        while True:
            left = sender.patience - (monotonic() - started)
            if left <= 0:
                raise ShardLost(f"shard {self.shard}: no life that lasts in {sender.patience} s") from error
            self.handle = self._directory.reconnect(self.shard, left, after=self.handle.incarnation)
            try:
                resumed = self._resume(first)
                break
            except _GONE as again:
                error = again
            except BaseException:
                self.handle = lost  # the next call begins with this again
                raise
        begin = max(first - resumed.lost, self._lost_until + 1)  # no step is lost twice
        self._lost_until = max(self._lost_until, first - 1)
        if sender.on_lost is not None:
            sender.on_lost(
                ShardLoss(
                    shard=self.shard,
                    incarnation=resumed.incarnation,
                    lost_steps=max(0, first - begin),
                    lost_lookups=sum(n for step, n in self._lookups if begin <= step < first),
                    resent=len(self._kept),
                    resent_lookups=sum(int(u.multiplicity.sum(dtype=np.int64)) for u in self._kept),
                    seconds=monotonic() - started,
                )
            )

    def _resume(self, first: int) -> Resumed:
        sender, handle = self._sender, self.handle
        resumed: Resumed = handle.call(
            "resume", sender.generation, handle.incarnation, sender.rank, sender.ranks, first
        ).result(sender.timeout)
        self._applied(resumed.watermark)
        self._pending_scalars.clear()
        begin = self._next_step()
        for step, scalars in self._scalars:
            self._send_scalars(max(step, begin), scalars)
        for update in self._kept:
            self._send(update)
        return resumed
