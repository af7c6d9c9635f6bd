"""Shards in threads of this process: the whole protocol without a network, for one machine and for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.handle import WAITING, ShardHandle, ShardLost
from cpr_native.cluster.messages import RowIds, Tag
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.spec import ClusterSpec

_WAITING_THREADS = 16


class _Answer:
    """A call that runs in a thread of its shard; lost once its life has ended."""

    def __init__(self, life: LocalHandle, future: Future[Any]) -> None:
        self._life = life
        self._future = future

    def result(self, timeout: float) -> Any:
        limit = monotonic() + timeout
        while True:
            self._life.check()
            try:
                answer = self._future.result(min(0.05, max(0.0, limit - monotonic())))
            except CancelledError:
                raise self._life.lost() from None
            except FutureTimeout:
                if not self._future.done():
                    if monotonic() >= limit:
                        raise TimeoutError(f"shard {self._life.shard}: no answer after {timeout} s") from None
                    continue
                raise
            self._life.check()
            return answer


class LocalHandle:
    """One life of a shard in this process; `server` is the shard itself."""

    def __init__(self, server: ShardServer) -> None:
        self.server = server
        self._ended = threading.Event()
        self._ordered = ThreadPoolExecutor(1, f"shard-{server.shard}")
        self._waiting = ThreadPoolExecutor(_WAITING_THREADS, f"shard-{server.shard}-waits")

    @property
    def shard(self) -> int:
        """Its number."""
        return self.server.shard

    @property
    def incarnation(self) -> int:
        """Of the server."""
        return self.server.incarnation

    def check(self) -> None:
        """Raise ShardLost after `end`."""
        if self._ended.is_set():
            raise self.lost()

    def lost(self) -> ShardLost:
        """Return what calls raise after `end`."""
        return ShardLost(f"shard {self.shard}, incarnation {self.incarnation}, has ended")

    def _send(self, method: str, *args: Any) -> _Answer:
        self.check()
        threads = self._waiting if method in WAITING else self._ordered
        call = getattr(self.server, method)
        try:
            return _Answer(self, threads.submit(call, *args))
        except RuntimeError:  # it ended just now
            raise self.lost() from None

    def lookup(self, tag: Tag, rows: RowIds) -> _Answer:
        """As `ShardHandle.lookup`."""
        return self._send("lookup", tag, rows)

    def update(
        self, tag: Tag, rows: RowIds, gradient: NDArray[np.float32], multiplicity: NDArray[np.uint32]
    ) -> _Answer:
        """As `ShardHandle.update`; the arrays are copied."""
        copied = RowIds(rows.counts.copy(), rows.rows.copy())
        return self._send("update", tag, copied, gradient.copy(), multiplicity.copy())

    def call(self, method: str, *args: Any) -> _Answer:
        """As `ShardHandle.call`."""
        return self._send(method, *args)

    def end(self) -> None:
        """Be lost from now on: no answer comes any more; calls that run may go on in the server."""
        self._ended.set()
        self._ordered.shutdown(wait=False, cancel_futures=True)
        self._waiting.shutdown(wait=False, cancel_futures=True)


class LocalDirectory:
    """The shards of `spec` in threads of this process.

    `restarts`: a shard that was killed begins anew at once. `make`: of a server, for tests that watch one.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        *,
        restarts: bool = True,
        make: Callable[[ClusterSpec, int], ShardServer] = ShardServer,
    ) -> None:
        self.spec = spec
        self._make = make
        self._restarts = restarts
        self._changed = threading.Condition()
        self._lives: dict[int, LocalHandle] = {}
        self._past: list[LocalHandle] = []
        for shard in range(spec.shards):
            self._lives[shard] = LocalHandle(make(spec, shard))

    @property
    def shards(self) -> int:
        """Their number."""
        return self.spec.shards

    def handle(self, shard: int) -> ShardHandle:
        """As `ShardDirectory.handle`."""
        return self.life(shard)

    def life(self, shard: int) -> LocalHandle:
        """Return the present life of a shard, with its server; raises ShardLost."""
        with self._changed:
            if shard not in self._lives:
                raise ShardLost(f"shard {shard}: not running")
            return self._lives[shard]

    def reconnect(self, shard: int, timeout: float, *, after: int) -> ShardHandle:
        """As `ShardDirectory.reconnect`."""

        def found() -> bool:
            return shard in self._lives and self._lives[shard].incarnation > after

        with self._changed:
            if not self._changed.wait_for(found, timeout):
                raise ShardLost(f"shard {shard}: no life after incarnation {after} within {timeout} s")
            return self._lives[shard]

    def kill(self, shard: int) -> ShardServer:
        """Make a life lost; its server, which knows nothing of it, is returned, and closed by `close`."""
        with self._changed:
            life = self._lives.pop(shard)
            self._past.append(life)
        life.end()
        if self._restarts:
            self.start(shard)
        return life.server

    def start(self, shard: int) -> None:
        """Begin the next life of a shard; raises what its constructor raises."""
        life = LocalHandle(self._make(self.spec, shard))
        with self._changed:
            self._lives[shard] = life
            self._changed.notify_all()

    def close(self) -> None:
        """End all shards."""
        with self._changed:
            lives = [*self._lives.values(), *self._past]
            self._lives.clear()
        for life in lives:
            life.end()
            life.server.close()
