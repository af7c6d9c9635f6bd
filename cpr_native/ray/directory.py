"""`RayShards`: where the shards of a run are, and messages to them through Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray import exceptions

from cpr_native.cluster.handle import ShardHandle, ShardLost
from cpr_native.cluster.messages import RowIds, Tag, WrongIncarnation
from cpr_native.ray import internals
from cpr_native.ray.actor import ShardLife, group_of
from cpr_native.ray.capacity import capacity, pending_line
from cpr_native.ray.log import log
from cpr_native.ray.settings import ClusterSettings

_SLICE = 1.0  # seconds; between two looks at a shard that does not answer
_PAUSE = 0.05  # seconds, after an answer that it is gone
_SAME = 3  # answers of the life that was lost until it is ended by force


def answer(reference: Any, timeout: float, shard: int) -> Any:
    """Return what an actor returned, waiting up to `timeout` seconds.

    Raises TimeoutError; ShardLost when its process or node is gone; else what the method raised, as it was.
    """
    try:
        return ray.get(reference, timeout=max(0.0, timeout))
    except exceptions.GetTimeoutError:
        raise TimeoutError(f"shard {shard}: no answer after {timeout:.1f} s") from None
    except exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else error) from None
    except exceptions.RayError as error:
        raise ShardLost(f"shard {shard}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class RayPending:
    """The answer to a call that was sent to an actor."""

    def __init__(self, shard: int, reference: Any) -> None:
        self._shard = shard
        self._reference = reference

    def result(self, timeout: float) -> Any:
        """As `Pending.result`; arrays are read-only. ShardLost, too, when another life got the call."""
        try:
            return answer(self._reference, timeout, self._shard)
        except WrongIncarnation as error:
            raise ShardLost(str(error)) from error


class RayHandle:
    """One life of a shard. Its actor carries calls to the next life when there is one, which refuses them."""

    def __init__(self, actor: Any, life: ShardLife) -> None:
        self._actor = actor
        self.life = life

    @property
    def shard(self) -> int:
        """Its number."""
        return self.life.shard

    @property
    def incarnation(self) -> int:
        """Of the process."""
        return self.life.incarnation

    def lookup(self, tag: Tag, rows: RowIds) -> RayPending:
        """As `ShardHandle.lookup`."""
        return RayPending(self.shard, self._actor.lookup.remote(tag, rows))

    def update(
        self, tag: Tag, rows: RowIds, gradient: NDArray[np.float32], multiplicity: NDArray[np.uint32]
    ) -> RayPending:
        """As `ShardHandle.update`."""
        return RayPending(self.shard, self._actor.update.remote(tag, rows, gradient, multiplicity))

    def call(self, method: str, *args: Any) -> RayPending:
        """As `ShardHandle.call`."""
        carrier = getattr(self._actor, group_of(method))
        return RayPending(self.shard, carrier.remote(self.incarnation, method, *args))


class RayShards:
    """The shards of a run that was launched, for any process that is connected to its Ray cluster.

    Ray begins the next life of a shard by itself: on the same node after the loss of its process, on a
    spare one after the loss of the node. `settings`: of the run; `shards`: their number.
    """

    def __init__(self, settings: ClusterSettings, shards: int) -> None:
        self.settings = settings
        self._shards = shards
        self._lock = threading.Lock()
        self._actors: dict[int, Any] = {}
        self._handles: dict[int, RayHandle] = {}

    @property
    def shards(self) -> int:
        """Their number."""
        return self._shards

    def actor(self, shard: int) -> Any:
        """Return the Ray actor of a shard, in whatever state; raises ShardLost when there is none."""
        if not 0 <= shard < self._shards:
            raise IndexError(f"shard {shard} of {self._shards}")
        with self._lock:
            found = self._actors.get(shard)
        if found is None:
            try:
                found = ray.get_actor(self.settings.actor_name(shard), namespace=self.settings.namespace)
            except ValueError as error:
                raise ShardLost(f"shard {shard}: run {self.settings.run!r} has no actor of it") from error
            with self._lock:
                self._actors[shard] = found
        return found

    def handle(self, shard: int) -> ShardHandle:
        """As `ShardDirectory.handle`; at first it asks the shard, for `call_timeout` seconds at most."""
        with self._lock:
            known = self._handles.get(shard)
        return known or self.reconnect(shard, self.settings.call_timeout, after=0)

    def reconnect(self, shard: int, timeout: float, *, after: int) -> RayHandle:
        """As `ShardDirectory.reconnect`.

        A process that still answers though it was taken for lost is ended, so that there is a next one.
        """
        deadline = time.monotonic() + timeout
        waiting = _Waiting(self.settings, shard)
        actor = self.actor(shard)
        same, why, asked = 0, "no answer", actor.life.remote()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ShardLost(
                    f"shard {shard}: no life after incarnation {after} within {timeout} s: {why}; "
                    f"{waiting.state(actor)}"
                )
            try:
                life: ShardLife = answer(asked, min(_SLICE, left), shard)
            except TimeoutError:
                waiting.report(actor)
                continue
            except ShardLost as error:
                why = str(error)
                waiting.report(actor)
                time.sleep(_PAUSE)
            else:
                if life.incarnation > after:
                    return self._keep(RayHandle(actor, life), after)
                same += 1
                why = f"incarnation {life.incarnation} still runs"
                if same == _SAME:
                    log("shard_ended_by_force", run=self.settings.run, shard=shard, incarnation=after)
                    ray.kill(actor, no_restart=False)
                time.sleep(_PAUSE)
            asked = actor.life.remote()

    def _keep(self, handle: RayHandle, after: int) -> RayHandle:
        with self._lock:
            known = self._handles.get(handle.shard)
            if known is None or known.incarnation < handle.incarnation:
                self._handles[handle.shard] = handle
        if after:
            log("shard_reconnected", run=self.settings.run, shard=handle.shard, after=after,
                incarnation=handle.incarnation, pid=handle.life.pid, address=handle.life.address)  # fmt: skip
        return handle


class _Waiting:
    """Says, every `report_every` seconds, that a shard waits and for what."""

    def __init__(
        self, settings: ClusterSettings, shard: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._shard = shard
        self._now = now
        self._next = now() + settings.report_every

    def state(self, actor: Any) -> str:
        state = internals.actor_state(actor._actor_id.hex()).get("State", "unknown")
        if state == "ALIVE":
            return "its process is up and does not answer"
        return f"its actor is {state}; {pending_line(capacity(self._settings.resource), missing=1)}"

    def report(self, actor: Any) -> None:
        if self._now() >= self._next:
            self._next = self._now() + self._settings.report_every
            log("shard_waits", run=self._settings.run, shard=self._shard, state=self.state(actor))
