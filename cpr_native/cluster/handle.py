"""The seams between a trainer and whatever carries its messages to the shards.

`ShardHandle` is one life of one shard's process, `ShardDirectory` finds it and its successor. The in-process
and the multiprocessing directory are in `cpr_native.cluster.local` and `.processes`; another transport
implements these two protocols and `Pending` over a `ShardServer`, which has a method for everything here.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.messages import Ack, RowIds, Tag
from cpr_native.errors import CprError

T_co = TypeVar("T_co", covariant=True)

# Methods of `ShardServer` that may wait for other calls, each in a thread of its own. All others return
# without waiting for any other call: one thread serves them all, in the order of each caller.
WAITING = ("lookup", "committed", "drain")


class ShardLost(CprError):
    """The process of the shard is gone, or can't be reached; `reconnect` waits for the next one."""


class Pending(Protocol[T_co]):
    """The answer to a call that was sent."""

    def result(self, timeout: float) -> T_co:
        """Return the answer, waiting up to `timeout` seconds for it.

        Raises TimeoutError (the call may still be carried out), ShardLost, and what the shard raised: every
        `ProtocolError` as it is. May be called again.
        """
        ...


class ShardHandle(Protocol):
    """One life of one shard's process. Any thread may call; calls of one thread are sent in order.

    No method waits for the shard. Arrays are not changed until the answer is there: by neither side.
    """

    @property
    def shard(self) -> int:
        """Its number."""
        ...

    @property
    def incarnation(self) -> int:
        """Of the process, as its `ShardServer` took it; goes into every `Tag`."""
        ...

    def lookup(self, tag: Tag, rows: RowIds) -> Pending[NDArray[np.float32]]:
        """Ask for rows: float32, flat, table after table [counts[t], dim[t]]; may be read-only."""
        ...

    def update(
        self,
        tag: Tag,
        rows: RowIds,
        gradient: NDArray[np.float32],
        multiplicity: NDArray[np.uint32],
    ) -> Pending[Ack]:
        """Send the gradient of rows, float32 flat in the layout of `lookup`'s answer.

        `multiplicity`: uint32 [u], how many of the step's lookups a row's gradient is summed of.
        """
        ...

    def call(self, method: str, *args: Any) -> Pending[Any]:
        """Call any other public method of the `ShardServer`."""
        ...


class ShardDirectory(Protocol):
    """Where the shards of a run are. Any thread may call."""

    @property
    def shards(self) -> int:
        """Their number."""
        ...

    def handle(self, shard: int) -> ShardHandle:
        """Return the present life of `shard` as far as it is known here.

        Raises ShardLost when there is none at the moment.
        """
        ...

    def reconnect(self, shard: int, timeout: float, *, after: int) -> ShardHandle:
        """Wait up to `timeout` seconds for a life of `shard` of an incarnation above `after`; returns it.

        Whoever starts shards anew does so without being asked; several callers may wait for the same one.
        Raises ShardLost, naming what is missing, when there is none in time.
        """
        ...
