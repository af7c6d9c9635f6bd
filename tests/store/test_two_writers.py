"""Two writers at a directory where locks keep nobody out: what was reported stays, and one of them stops."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns.io_points import PATH
from campaigns.memory_disk import MemoryDisk, Nodes
from campaigns.small_job import PLACEMENT, SCHEMA, SmallJob, exact_state

from cpr_native.errors import FencedError
from cpr_native.store import CheckpointStore, StoreWriter, system, verify
from cpr_native.store.lock import ChainLock


class WithoutLocks(MemoryDisk):
    """A network file system whose locks do nothing; no file is known again by its number.

    `interrupt` is done as a whole, by the thread that makes call number `at`, before that call.
    """

    def __init__(self, nodes: Nodes | None = None) -> None:
        super().__init__(nodes, before=self._count)
        self.calls, self.at = 0, 0
        self.interrupt: Callable[[], None] = lambda: None

    def _count(self, call: str) -> None:
        self.calls += 1
        if self.calls == self.at:
            self._guard.release()  # which other threads of the interrupting writer need
            try:
                self.interrupt()
            finally:
                self._guard.acquire()

    def lock(self, fd: int) -> None:
        pass

    def fstat(self, fd: int) -> os.stat_result:
        found = list(super().fstat(fd))
        found[1] = next(self._numbers) + 10**6
        return os.stat_result(found)


def open_writer() -> StoreWriter:
    return CheckpointStore(PATH).writer(SCHEMA, PLACEMENT)


def a_history() -> Nodes:
    """A directory with a base."""
    disk, job = WithoutLocks(), SmallJob()
    with system.use(disk), open_writer() as writer:
        job.train()
        job.save(writer, "base")
    return disk.nodes


HISTORY = a_history()


class Writer:
    """One of the two: opens the directory, goes on from its newest point, saves a delta."""

    def __init__(self) -> None:
        self.job = SmallJob()
        self.writer: StoreWriter | None = None
        self.reported: bytes | None = None
        self.fenced = False

    def open(self) -> None:
        try:
            self.writer = open_writer()
            point = CheckpointStore(PATH).latest()
            self.writer.rollback(point)
            self.job.load(point)
        except FencedError:
            self.fenced = True

    def save(self) -> None:
        if self.fenced:
            return
        assert self.writer is not None
        self.job.train()
        state, _ = self.job.after("delta")
        try:
            self.job.save(self.writer, "delta")
            self.reported = state
        except FencedError:
            self.fenced = True

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def check(disk: MemoryDisk, older: Writer, newer: Writer) -> None:
    with system.use(disk):
        older.close()
        newer.close()
        found = exact_state(CheckpointStore(PATH).latest())
        assert newer.reported is not None or older.reported is not None or older.fenced
        if newer.reported is not None:
            assert found == newer.reported
        elif older.reported is not None:
            assert found == older.reported
        assert verify(PATH) == []


def overtaken(at: int) -> tuple[WithoutLocks, Writer, Writer]:
    """An older writer that saves, and a newer one that opens and saves just before call `at` of that."""
    disk, older, newer = WithoutLocks(HISTORY), Writer(), Writer()

    def overtake() -> None:
        newer.open()
        newer.save()

    with system.use(disk):
        older.open()
        disk.calls, disk.at, disk.interrupt = 0, at, overtake
        older.save()
        disk.at = 0
    return disk, older, newer


def test_a_writer_that_is_overtaken_during_its_save_has_saved_or_stops() -> None:
    at, outcomes = 1, set()
    while True:
        disk, older, newer = overtaken(at)
        if newer.writer is None and not newer.fenced:
            older.close()
            break  # the save has fewer calls
        check(disk, older, newer)
        if older.reported is not None and newer.reported is not None:
            assert newer.job.step == older.job.step + 1  # went on from what the older one had reported
        outcomes.add((older.fenced, newer.fenced))
        at += 3
    assert at > 50
    assert (True, False) in outcomes
    assert (True, True) not in outcomes


def test_what_an_older_writer_reports_while_a_newer_one_opens_is_not_lost() -> None:
    saved, at = 0, 1
    while True:
        disk, older, newer = WithoutLocks(HISTORY), Writer(), Writer()
        with system.use(disk):
            older.open()
            disk.calls, disk.at, disk.interrupt = 0, at, older.save
            newer.open()
            disk.at = 0
            if disk.calls < at:
                newer.close()
                older.close()
                break
            newer.save()
        if older.reported is not None:
            saved += 1
            assert newer.fenced or newer.job.step == older.job.step + 1
        check(disk, older, newer)
        at += 7
    assert saved > 5


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_of(tmp_path: Path, code: int) -> None:
    class Refusing(system.System):
        def lock(self, fd: int) -> None:
            raise OSError(code, os.strerror(code))

    with system.use(Refusing()):
        with pytest.warns(RuntimeWarning, match="has no locks"):
            lock = ChainLock(tmp_path / "LOCK")
        lock.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ChainLock(tmp_path / "LOCK").close()
