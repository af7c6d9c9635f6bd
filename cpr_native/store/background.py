"""Threads that wait for the disk, and the segment files whose bytes they make durable."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from cpr_native._native import SegmentFile

T = TypeVar("T")
H = TypeVar("H", bound="Held")


class Held(Protocol):
    """Memory that the bytes of a segment come from: a `SegmentPart`, or a snapshot's `GatheredRows`."""

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        ...

    @property
    def close(self) -> Callable[[], object]:
        """Gives it back."""
        ...


class Workers:
    """Daemon threads that run calls, first come first served; `close` ends them.

    Not an executor of the standard library: those refuse work once the interpreter has begun to exit, and
    a save in flight is still finished then. Raises RuntimeError when a thread can't be started.
    """

    def __init__(self, threads: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(threads):
                thread = threading.Thread(target=self._work, name="cpr-sync", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            self.close()
            raise

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            future, call = taken
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del taken, future, call

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Runs `call` on a thread."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Returns the results of `calls`, run side by side; one error is raised once all have ended."""
        futures = [self.submit(call) for call in calls]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def close(self) -> None:
        """Ends the threads after what they were given."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


class Syncing:
    """Segment files that were written and are not yet durable, of one save.

    Each is synced on a thread of `workers`, so that the disk is busy while the next one is gathered and
    written; without workers it is synced at once. Their parts are closed as soon as their bytes are durable
    or their sync has failed. At most `max_bytes` of parts wait beside the newest file's.
    """

    def __init__(self, workers: Workers | None, max_bytes: int) -> None:
        self._workers = workers
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[tuple[Future[None], int]] = deque()

    def add(self, file: SegmentFile, parts: list[H], sealed: Callable[[], object] | None = None) -> None:
        """Takes a file and its parts over; raises the OSError of an earlier one.

        sealed: called once the file is durable, on any thread.
        """
        if self._workers is None:
            _sync(file, parts, sealed)
            return
        size = sum(part.nbytes for part in parts)
        self._waiting.append((self._workers.submit(lambda: _sync(file, parts, sealed)), size))
        self._bytes += size
        while self._bytes - size > self._max_bytes:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        future, size = self._waiting.popleft()
        self._bytes -= size
        future.result()

    def wait(self) -> None:
        """Returns when all files are durable; raises OSError: then the save can only be aborted."""
        while self._waiting:
            self._wait_oldest()

    def drain(self) -> None:
        """Returns when no file is being synced any more, whether that succeeded or not."""
        while self._waiting:
            with suppress(OSError):
                self._wait_oldest()


def _sync(file: SegmentFile, parts: list[H], sealed: Callable[[], object] | None) -> None:
    try:
        file.sync()
    finally:
        close_parts(parts)
    if sealed is not None:
        sealed()


def close_parts(parts: list[H]) -> None:
    """Closes `parts` and empties the list."""
    while parts:
        parts.pop().close()
