"""`ShardClients`: one trainer's side of the protocol, over all shards."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.handle import ShardDirectory, ShardHandle
from cpr_native.cluster.link import ShardLink
from cpr_native.cluster.messages import RowIds
from cpr_native.cluster.sending import Sender, SentUpdate, ShardLoss
from cpr_native.cluster.watching import watch

__all__ = ["Lookups", "ShardClients", "ShardLoss"]


class Lookups:
    """The answers of all shards to one lookup, while they are on their way; see `ShardClients.lookup`."""

    def __init__(
        self, clients: ShardClients, links: Sequence[ShardLink], step: int, rows: Sequence[RowIds]
    ) -> None:
        self._clients = clients
        self._links = links
        self._step = step
        self._rows = tuple(rows)
        self._sent = [link.try_lookup(step, each) for link, each in zip(links, self._rows, strict=True)]

    @property
    def step(self) -> int:
        """The step that the rows are for."""
        return self._step

    def result(self, shard: int) -> NDArray[np.float32]:
        """Return the shard's rows, float32, flat, table after table; may be read-only.

        Waits for the next life of a shard that is lost, and asks it.
        """
        with self._clients._calling():
            return self._links[shard].looked_up(self._step, self._rows[shard], self._sent[shard])


class ShardClients:
    """One rank's calls to all shards; used by one thread at a time.

    Updates are kept until they are applied. When the process of a shard is lost, the call that notices it
    waits for the next life, tells it where this rank is, sends it the updates that are kept, calls `on_lost`
    and goes on. Other ranks may wait for that, while this one waits for them elsewhere, in a collective of
    `torch.distributed` say: of several ranks each has a thread that does the same between its calls, until
    `close`.

    Args:
        directory: where the shards are.
        rank, ranks: of this trainer in its group, and their number.
        generation: of the group.
        applied: the step up to which the shards have this group's updates; the first to send is the next.
        timeout: that one answer is waited for, in seconds: above `ClusterSpec.lookup_seconds`, so that it is
            the shard that says what it waits for.
        patience: that the next life of a shard is waited for, in seconds.
        window: updates of a shard that may be without an answer; at least 1.
        resumes: False leaves a lost shard lost: ShardLost is raised to the trainer, which brings all shards
            to one step and calls `begin`.
        on_lost: told of every loss, by the thread that calls, at the end of a call.

    Raises (each of its calls):
        TimeoutError: no answer in time.
        ShardLost: no next life in time; with `resumes=False` at once.
        ProtocolError: what shards refuse.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        *,
        rank: int = 0,
        ranks: int = 1,
        generation: int = 1,
        applied: int = 0,
        timeout: float = 90.0,
        patience: float = 60.0,
        window: int = 4,
        resumes: bool = True,
        on_lost: Callable[[ShardLoss], None] | None = None,
    ) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank: expected 0 <= rank < {ranks}, got {rank}")
        if window < 1:
            raise ValueError(f"window: expected at least 1, got {window}")
        self.directory = directory
        self.on_lost = on_lost
        self._losses: deque[ShardLoss] = deque()
        self._lock = threading.RLock()  # held by a call as long as it lasts
        self._sender = Sender(
            rank=rank,
            ranks=ranks,
            generation=generation,
            step=applied + 1,
            timeout=timeout,
            patience=patience,
            window=window,
            resumes=resumes,
            on_lost=self._losses.append,
        )
        self._links = [ShardLink(directory, shard, self._sender) for shard in range(directory.shards)]
        for link in self._links:
            link.meanwhile = partial(self._notice, link)
        self._stop = None if ranks == 1 else watch(self)

    @property
    def shards(self) -> int:
        """Their number."""
        return len(self._links)

    @property
    def rank(self) -> int:
        """Of this trainer."""
        return self._sender.rank

    @property
    def ranks(self) -> int:
        """Trainers of the group."""
        return self._sender.ranks

    @property
    def generation(self) -> int:
        """Of the group."""
        return self._sender.generation

    @property
    def step(self) -> int:
        """The step whose update is to be sent next, from 1."""
        return self._sender.step

    @property
    def resumes(self) -> bool:
        """Whether a lost shard is waited for and goes on alone."""
        return self._sender.resumes

    @resumes.setter
    def resumes(self, value: bool) -> None:
        self._sender.resumes = value

    @property
    def lookups(self) -> NDArray[np.int64]:
        """Lookups whose updates this rank has sent to each shard so far: int64 [shards]."""
        return np.array([link.total for link in self._links], np.int64)

    @property
    def kept(self) -> list[int]:
        """How many updates of each shard are kept."""
        return [link.kept for link in self._links]

    def handle(self, shard: int) -> ShardHandle:
        """Return the life of a shard that calls go to at present."""
        return self._links[shard].handle

    def lookup(self, rows: Sequence[RowIds], *, step: int | None = None) -> Lookups:
        """Ask every shard for its rows; returns without waiting. Arrays are borrowed.

        `rows`: of each shard. `step`: the one that they are for, None for the next.
        """
        with self._calling():
            return Lookups(self, self._links, self._sender.step if step is None else step, rows)

    def update(
        self,
        rows: Sequence[RowIds],
        gradients: Sequence[NDArray[np.float32]],
        multiplicities: Sequence[NDArray[np.uint32]],
    ) -> int:
        """Send every shard the gradients of its rows (see `ShardHandle.update`); returns the step.

        To be called for every step, with no rows if there are none. Keeps the arrays until they are applied:
        don't write to them. Waits only for the oldest answers when `window` are missing. What it raises may
        be of an earlier step's update; the step counts as sent, and what is not sent yet is sent by the next
        call.
        """
        with self._calling():
            return self._update(rows, gradients, multiplicities)

    def _update(
        self,
        rows: Sequence[RowIds],
        gradients: Sequence[NDArray[np.float32]],
        multiplicities: Sequence[NDArray[np.uint32]],
    ) -> int:
        step = self._sender.step
        updates = [SentUpdate(step, *parts) for parts in zip(rows, gradients, multiplicities, strict=True)]
        for link, update in zip(self._links, updates, strict=True):
            link.keep(update)
        self._sender.step = step + 1
        for link in self._links:
            link.send()
        for link in self._links:
            link.reap(self._sender.window - 1)
        return step

    def set_scalars(self, scalars: Mapping[str, float]) -> None:
        """Set hyperparameters of the shards' optimizer from the next step on, as `ShardServer.set_scalars`.

        Every rank calls it alike; rank 0 sends it. What a shard refuses is raised by a later call.
        """
        with self._calling():
            for link in self._links if self._sender.rank == 0 else ():
                link.set_scalars(scalars)

    def settle(self, timeout: float) -> None:
        """Return when everything that was sent is applied; raises TimeoutError after `timeout` seconds."""
        limit = monotonic() + timeout
        with self._calling():
            for link in self._links:
                link.settle(limit)

    def call(self, shard: int, method: str, *args: Any) -> Any:
        """Call any method of a shard that may be repeated, and wait for its answer."""
        with self._calling():
            return self._links[shard].call(method, *args)

    def begin(self, generation: int, applied: int) -> None:
        """Go on as another generation, to which the shards were brought: step `applied + 1` is the next.

        What was kept is dropped, and the present lives of all shards are looked up.
        """
        with self._calling():
            self._sender.generation = generation
            self._sender.step = applied + 1
            for link in self._links:
                link.begin()

    def _notice(self, waiting: ShardLink) -> None:
        """See to it that a shard that was lost is not what others wait for."""
        for link in self._links:
            if link is not waiting:
                link.notice()

    def forget(self, shard: int, step: int) -> None:
        """Note that the shard committed step `step`: lookups up to it can't be lost any more."""
        with self._lock:
            self._links[shard].forget(step)

    def look(self) -> None:
        """Go on with the next lives of shards that were lost, unless a call is under way, which does that."""
        if self._sender.resumes and self._lock.acquire(blocking=False):
            try:
                for link in self._links:
                    with suppress(Exception):  # the next call meets it again
                        link.notice()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the thread that looks at the shards, before the connection to them ends."""
        if self._stop is not None:
            self._stop.set()
            with self._lock:  # what it does is done
                pass

    @contextmanager
    def _calling(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                while self._losses:
                    loss = self._losses.popleft()
                    if self.on_lost is not None:
                        self.on_lost(loss)
