"""`ShardActor`: one shard as a Ray actor. It carries messages; what they mean is `ShardServer`'s."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import ray
from numpy.typing import NDArray

from cpr_native.cluster.handle import WAITING
from cpr_native.cluster.messages import Ack, RowIds, ShardStatus, Tag, WrongIncarnation
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.shared_books import free_memory
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.ray import internals
from cpr_native.ray.leaving import DRAIN, LeaveNotice, leave
from cpr_native.ray.log import log, to_stderr
from cpr_native.ray.metrics import ShardMetrics
from cpr_native.ray.settings import ClusterSettings

F = TypeVar("F", bound=Callable[..., Any])

# Methods of the server that neither wait nor change rows: served while an update is applied.
_WATCHING = ("status", "abandon", "verify")
_ATTEMPTS = 5
_FIRST_PAUSE = 0.2  # seconds, doubled after each attempt


def _group(name: str) -> Callable[[F], F]:
    return cast(Callable[[F], F], ray.method(concurrency_group=name))


@dataclass(frozen=True, kw_only=True)
class ShardLife:
    """What an actor says of itself: shard, incarnation, process, node (its id in hex)."""

    shard: int
    incarnation: int
    pid: int
    node: str
    address: str


def group_of(method: str) -> str:
    """Return the method of the actor that carries a call of this method of the server."""
    if method in WAITING:
        return "waiting"
    return "watching" if method in _WATCHING else "ordered"


class ShardActor:
    """One life of a shard in a process of its own, without torch. Making it is the recovery.

    Updates, and whatever else must not overtake them, run in one thread in the order of each caller; lookups
    and what waits for a commit in threads of their own; status in others still. An error of the file system
    in the constructor is tried again, and in the end by a new process; any other is kept, and every call
    raises it.
    """

    def __init__(self, spec: ClusterSpec, shard: int, settings: ClusterSettings) -> None:
        to_stderr()
        self._settings = settings
        self._about: dict[str, Any] = {"run": settings.run, "shard": shard, "pid": os.getpid()}
        self._failed: Exception | None = None
        self._server: ShardServer | None = None
        log("shard_begins", **self._about)
        self._server = self._open(spec, shard)
        if self._server is None:
            return
        recovery = self._server.recovery
        log("shard_ready", **self._about, incarnation=recovery.incarnation, source=recovery.source,
            rows=sum(recovery.rows.values()), reset=sum(recovery.reset.values()),
            seconds=round(recovery.seconds, 3), skipped=recovery.skipped,
            refused=recovery.refused)  # fmt: skip
        context = ray.get_runtime_context()
        self._life = ShardLife(
            shard=shard,
            incarnation=self._server.incarnation,
            pid=os.getpid(),
            node=context.get_node_id(),
            address=internals.own_address(),
        )
        self._notice = LeaveNotice(self._life.node, self._leave)
        self._metrics = ShardMetrics(settings.run, self._server)

    def _open(self, spec: ClusterSpec, shard: int) -> ShardServer | None:
        pause = _FIRST_PAUSE
        for left in range(_ATTEMPTS - 1, -1, -1):
            try:
                return ShardServer(spec, shard, fatal=self._fatal)
            except OSError as error:
                log("shard_open_failed", **self._about, error=str(error), attempts_left=left)
                if left == 0:
                    os._exit(1)  # Ray begins the next life, where it can
                time.sleep(pause)
                pause *= 2
            except Exception as error:
                log("shard_refused", **self._about, error=f"{type(error).__name__}: {error}")
                self._failed = error
                return None
        return None

    def _fatal(self, error: BaseException) -> None:
        log("shard_fatal", **self._about, error=f"{type(error).__name__}: {error}")
        os._exit(1)

    def _leave(self, reason: str) -> None:
        """Save what is not saved and end, so that Ray begins the next life elsewhere."""
        server = self._present
        done = leave(server, self._settings.grace, {**self._about, "reason": reason})
        if done is not None and reason == DRAIN:  # the next life is on another node
            with contextlib.suppress(OSError):
                free_memory(server.spec, server.shard)
        os._exit(1)

    @property
    def _present(self) -> ShardServer:
        if self._server is None:
            assert self._failed is not None
            raise self._failed
        return self._server

    def _call(self, incarnation: int | None, method: str, *args: Any) -> Any:
        server = self._present
        if incarnation not in (None, server.incarnation):
            raise WrongIncarnation(
                f"shard {server.shard}: incarnation: expected {server.incarnation}, got {incarnation}"
            )
        return getattr(server, method)(*args)

    @_group("watching")
    def life(self) -> ShardLife:
        """Return who this is; raises what kept the shard from beginning."""
        assert self._present
        return self._life

    @_group("watching")
    def watching(self, incarnation: int | None, method: str, *args: Any) -> Any:
        """Call a method of the server that changes no rows; None: of whichever life."""
        return self._call(incarnation, method, *args)

    @_group("waiting")
    def lookup(self, tag: Tag, rows: RowIds) -> NDArray[np.float32]:
        """As `ShardServer.lookup`."""
        return self._present.lookup(tag, rows)

    @_group("waiting")
    def waiting(self, incarnation: int, method: str, *args: Any) -> Any:
        """Call a method of the server that may wait."""
        return self._call(incarnation, method, *args)

    @_group("ordered")
    def update(
        self, tag: Tag, rows: RowIds, gradient: NDArray[np.float32], multiplicity: NDArray[np.uint32]
    ) -> Ack:
        """As `ShardServer.update`."""
        return self._present.update(tag, rows, gradient, multiplicity)

    @_group("ordered")
    def ordered(self, incarnation: int, method: str, *args: Any) -> Any:
        """Call any other public method of the server."""
        return self._call(incarnation, method, *args)

    @_group("watching")
    def finish(self, commit: bool) -> ShardStatus:
        """Commit what is not saved if `commit`, free the chain and, once all is saved, shared memory."""
        server, saved = self._present, True
        if commit:
            about = {**self._about, "reason": "the run ends"}
            saved = leave(server, self._settings.grace, about) is not None
        status = server.status()
        server.close()
        self._metrics.close()
        if saved:
            free_memory(server.spec, server.shard)
        return status


def actor_class(settings: ClusterSettings) -> Any:
    """Return the Ray actor class with the threads that `settings` asks for."""
    groups = {"ordered": 1, "waiting": settings.lookups, "watching": 2}
    decorate = cast(Callable[..., Any], ray.remote)
    return decorate(concurrency_groups=groups)(ShardActor)
