"""Shards as processes of this machine, started anew when they die: for one machine, and for tests."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.handle import WAITING, ShardHandle, ShardLost
from cpr_native.cluster.messages import RowIds, ShardRecovery, Tag
from cpr_native.cluster.server import ShardServer
from cpr_native.cluster.spec import ClusterSpec

_STOP_SECONDS = 10.0
_ATTEMPTS = 5
_FATAL = 70  # exit status of a process whose rows are in doubt


def _serve(spec: ClusterSpec, shard: int, calls: Connection) -> None:
    """Be a shard until the other end of `calls` is gone or says None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the trainer decides
    sending = threading.Lock()

    def answer(number: int, ok: bool, value: Any) -> None:
        with sending, suppress(OSError):
            calls.send((number, ok, value))

    try:
        server = ShardServer(spec, shard, fatal=lambda _: os._exit(_FATAL))
    except BaseException as error:
        answer(-1, False, error)
        return
    answer(-1, True, server.recovery)

    def run(number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            value = getattr(server, method)(*args)
        except BaseException as error:
            answer(number, False, error)
        else:
            answer(number, True, value)

    with suppress(EOFError, OSError):
        while (call := calls.recv()) is not None:
            if call[1] in WAITING:
                threading.Thread(target=run, args=call, daemon=True).start()
            else:
                run(*call)
    server.close()


class _Answer:
    def __init__(self, life: ProcessHandle, future: Future[Any]) -> None:
        self._life = life
        self._future = future

    def result(self, timeout: float) -> Any:
        try:
            return self._future.result(timeout)
        except FutureTimeout:
            if self._future.done():
                raise
            raise TimeoutError(f"shard {self._life.shard}: no answer after {timeout} s") from None


class ProcessHandle:
    """One life of a shard: a process of its own."""

    def __init__(self, spec: ClusterSpec, shard: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._calls, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(spec, shard, other), name=f"shard-{shard}", daemon=True
        )
        self._process.start()
        other.close()
        self._shard = shard
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, Future[Any]] = {-1: Future()}
        self._gone = False
        self._started: Future[ShardRecovery] = self._open[-1]
        self.ended = threading.Event()
        threading.Thread(target=self._read, name=f"shard-{shard}-answers", daemon=True).start()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, ok, value = self._calls.recv()
                future = self._open.pop(number, None)
                if future is not None:
                    future.set_result(value) if ok else future.set_exception(value)
        with self._sending:
            self._gone = True
            left, self._open = self._open, {}
        for future in left.values():
            future.set_exception(self._lost())
        self.ended.set()

    def _lost(self) -> ShardLost:
        return ShardLost(f"shard {self._shard}: process {self._process.pid} has ended")

    @property
    def shard(self) -> int:
        """Its number."""
        return self._shard

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def started(self, timeout: float) -> ShardRecovery:
        """Return what the constructor did; raises what it raised, ShardLost, TimeoutError."""
        recovery: ShardRecovery = _Answer(self, self._started).result(timeout)
        return recovery

    @property
    def incarnation(self) -> int:
        """Of the server, which has started."""
        return self._started.result(0).incarnation

    def _send(self, method: str, *args: Any) -> _Answer:
        future: Future[Any] = Future()
        with self._sending:
            if self._gone:
                raise self._lost()
            number = next(self._numbers)
            self._open[number] = future
            try:
                self._calls.send((number, method, args))
            except OSError:
                self._open.pop(number, None)
                raise self._lost() from None
        return _Answer(self, future)

    def lookup(self, tag: Tag, rows: RowIds) -> _Answer:
        """As `ShardHandle.lookup`."""
        return self._send("lookup", tag, rows)

    def update(
        self, tag: Tag, rows: RowIds, gradient: NDArray[np.float32], multiplicity: NDArray[np.uint32]
    ) -> _Answer:
        """As `ShardHandle.update`."""
        return self._send("update", tag, rows, gradient, multiplicity)

    def call(self, method: str, *args: Any) -> _Answer:
        """As `ShardHandle.call`."""
        return self._send(method, *args)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join(_STOP_SECONDS)

    def stop(self) -> None:
        """End the process in order: a cut in flight is given up, its chain freed; by force if it hangs."""
        with suppress(OSError), self._sending:
            self._calls.send(None)
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self.kill()
        self._calls.close()
        self._process.close()


class ProcessDirectory:
    """The shards of `spec` as processes of this machine; `restarts`: one that ends is followed by the next.

    `timeout`: seconds that a shard may take to recover. Raises what a shard's constructor raises.
    """

    def __init__(self, spec: ClusterSpec, *, restarts: bool = True, timeout: float = 60.0) -> None:
        self.spec = spec
        self._timeout = timeout
        self._restarts = restarts
        self._closed = False
        self._changed = threading.Condition()
        self._lives: dict[int, ProcessHandle] = {}
        self._past: list[ProcessHandle] = []
        self._failed: dict[int, BaseException] = {}
        lives = {shard: ProcessHandle(spec, shard) for shard in range(spec.shards)}
        try:
            for shard, life in lives.items():
                life.started(timeout)
                self._enter(shard, life)
        except BaseException:
            self._closed = True
            for life in lives.values():
                life.stop()
            raise

    @property
    def shards(self) -> int:
        """Their number."""
        return self.spec.shards

    def _enter(self, shard: int, life: ProcessHandle) -> None:
        with self._changed:
            before = self._lives.get(shard)
            if before is not None:
                self._past.append(before)
            self._lives[shard] = life
            self._changed.notify_all()
        threading.Thread(target=self._watch, args=(shard, life), name="cpr-shards", daemon=True).start()

    def _watch(self, shard: int, life: ProcessHandle) -> None:
        life.ended.wait()
        with self._changed:
            if self._closed or not self._restarts or self._lives.get(shard) is not life:
                return
        for _ in range(_ATTEMPTS):  # a life may end while it recovers
            try:
                self.start(shard)
            except ShardLost:
                continue
            except Exception:
                return  # it would be the same again; `reconnect` raises it
            return

    def start(self, shard: int) -> None:
        """Begin the next life of a shard, whether the one before has ended or not.

        Raises what its constructor raises, and so does `reconnect` then; ShardLost when it ends before.
        """
        life = ProcessHandle(self.spec, shard)
        try:
            life.started(self._timeout)
        except BaseException as error:
            life.stop()
            with self._changed:
                if not isinstance(error, ShardLost):
                    self._failed[shard] = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._failed.pop(shard, None)
        self._enter(shard, life)

    def handle(self, shard: int) -> ShardHandle:
        """As `ShardDirectory.handle`."""
        return self.life(shard)

    def life(self, shard: int) -> ProcessHandle:
        """Return the newest life of a shard; raises ShardLost if it has ended."""
        with self._changed:
            life = self._lives[shard]
        if life.ended.is_set():
            raise ShardLost(f"shard {shard}: process {life.pid} has ended")
        return life

    def reconnect(self, shard: int, timeout: float, *, after: int) -> ShardHandle:
        """As `ShardDirectory.reconnect`."""
        limit = monotonic() + timeout
        with self._changed:
            while True:
                life = self._lives[shard]
                if life.incarnation > after and not life.ended.is_set():
                    return life
                left = limit - monotonic()
                if left <= 0 or (shard in self._failed and life.incarnation <= after):
                    reason = self._failed.get(shard, f"none within {timeout} s")
                    raise ShardLost(f"shard {shard}: no life after incarnation {after}: {reason}")
                self._changed.wait(min(left, 1.0))

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._closed = True
            lives = [*self._lives.values(), *self._past]
            self._lives, self._past = {}, []
        for life in lives:
            life.stop()
