"""Compaction and retention beside training: one background thread of a writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cpr_native.store.chain_writer import ChainWriter
from cpr_native.store.checks import check_count
from cpr_native.store.compact import Folded, Watch, exact_run, fold, priority_run
from cpr_native.store.retention import prune

_NICE = 10


class _Stopped(Exception):
    """The writer needs the directory for itself."""


class Housekeeping:
    """What a writer does with commits it has made: folds long chains, removes what isn't kept.

    keep: exact points that retention keeps; None: all. compact: most increments that a chain may have; None:
    any number, and retention works inside each commit of a base. Otherwise a thread is woken by commits,
    which never wait for it.
    """

    def __init__(
        self, path: Path, chains: Sequence[ChainWriter], *, keep: int | None, compact: int | None
    ) -> None:
        for name, value in (("keep", keep), ("compact", compact)):
            if value is not None:
                check_count(name, value, 1)
        self._path = path
        self._chains = chains
        self._keep = keep
        self._compact = compact
        self._pid = os.getpid()
        self._busy = threading.RLock()  # held while commits are read or removed in the background
        self._holders = 0
        self._woken = threading.Condition()
        self._tasks = 0
        self._closing = False
        self._thread: threading.Thread | None = None
        self._based = False
        self._left = 0  # increments of the longest chain that was left as it was
        self._increments = compact or 0  # at most, of any chain; at first unknown: the first commit looks
        # Of a remote checkpoint: removes there what is gone here.
        self.sweep: Callable[[], object] | None = None
        self.retention_error: str | None = None
        self.compaction_error: str | None = None

    def committed(self, kind: str) -> None:
        """Told of a save that has become durable."""
        if self._compact is None:
            self.retention_error = None
            if kind == "base":
                self.prune()
            return
        with self._woken:
            self._based |= kind == "base"
            self._increments = 0 if kind == "base" else self._increments + 1
            if self._increments <= self._compact and not self._based:
                return
            self._tasks += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="cpr-compact", daemon=True)
                self._thread.start()
            self._woken.notify_all()

    def prune(self) -> None:
        """Removes what retention does not keep; an error is left in `retention_error`: saves stand anyway."""
        try:
            with self._busy:
                if self._keep is not None:
                    prune(self._path, self._keep)
                if self.sweep is not None:
                    self.sweep()
            self.retention_error = None
        except OSError as error:
            self.retention_error = str(error)

    def fold(self, most: int, watch: Watch = lambda _: None) -> list[Folded]:
        """Folds bases with more than `most` deltas, and runs of more, and at least two, priority commits.

        Raises CorruptionError, FencedError, OSError.
        """
        folded = []
        self._left = 0
        for chain in self._chains:
            if chain.shard is None:
                continue
            for run_of in (exact_run, priority_run):
                watch(0)
                reader = chain.reader()
                run = run_of(reader)
                if run is None:
                    continue
                increments = len(run.commits) - (run_of is exact_run)
                if increments > most and len(run.commits) > 1:
                    folded.append(fold(chain, reader, run, watch))
                else:
                    self._left = max(self._left, increments)
        return folded

    def _work(self) -> None:
        with suppress(OSError, AttributeError):  # a thread of its own priority, where the system has such
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._woken:
                while not self._tasks and not self._closing:
                    self._woken.wait()
                if self._closing:
                    return
                tasks, based = self._tasks, self._based
                self._increments, self._based = 0, False
            try:
                with self._busy:
                    self._run(based)
                self.compaction_error = None
                with self._woken:
                    self._increments += self._left
                    # Commits came that it may not have seen.
                    self._tasks += self._increments > (self._compact or 0)
            except _Stopped:
                self._again(based)
            except Exception as error:  # of a thread that nobody waits for: it is told at the next commit
                self.compaction_error = f"{type(error).__name__}: {error}"
            with self._woken:
                self._tasks -= tasks
                self._woken.notify_all()

    def _run(self, based: bool) -> None:
        assert self._compact is not None
        if self.fold(self._compact, self._watch) or based:
            self.prune()

    def _again(self, based: bool) -> None:
        """Makes a commit that came since, or the next one, wake the thread for what it was stopped in."""
        with self._woken:
            self._tasks += self._increments > 0
            self._increments += self._compact or 0
            self._based |= based

    def _watch(self, _: int) -> None:
        if self._closing or self._holders:
            raise _Stopped

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is folded or removed in the block; what is being folded is dropped and done again later."""
        self._holders += 1
        try:
            with self._busy:
                yield
        finally:
            self._holders -= 1

    def wait(self) -> None:
        """Returns when the thread has done what the commits so far have given it to do."""
        with self._woken:
            while self._tasks and not self._closing:
                self._woken.wait()

    def close(self) -> None:
        """Ends the thread; a fold under way is dropped. Does nothing in a forked child."""
        if self._pid != os.getpid():
            return
        with self._woken:
            self._closing = True
            self._woken.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
