"""The process of the soak: it trains on a disk that fails now and then, and writes down all it is told."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from campaigns.killed import Log
from campaigns.training import BATCH, Training, train_step
from cpr_native.store import system

EPOCH = 500
KEEP = 3
_CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
_CHANGING = {"pwrite", "fsync", "fdatasync", "link", "rename", "unlink", "mkdir"}
_MOST_DIGESTS = 100
_PAGE = os.sysconf("SC_PAGE_SIZE")


class FaultySystem(system.System):
    """The operating system, whose disk is full or broken for some calls, and writes short, while `armed`."""

    def __init__(self, rate: float, seed: int) -> None:
        self._rate = rate
        self._random = Random(seed)
        self._mutex = threading.Lock()
        self.armed = False
        self.faults = 0

    def __getattribute__(self, name: str) -> Any:
        real = object.__getattribute__(self, name)
        if name not in _CHANGING:
            return real

        def call(*arguments: Any) -> Any:
            with self._mutex:
                failing = self.armed and self._random.random() < self._rate
                short = failing and name == "pwrite" and self._random.random() < 0.5
                self.faults += failing
                code = self._random.choice(_CODES)
            if short:
                descriptor, data, offset = arguments
                return real(descriptor, data[: max(1, len(data) // 2)], offset)
            if failing:
                raise OSError(code, os.strerror(code))
            return real(*arguments)

        return call


def memory_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


def descriptors() -> int:
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


class Life:
    """One process of the job: training, saves, recoveries, and a log of what was reported.

    The digest of the rows at every step at which a save began is written with the commit.
    """

    def __init__(self, folder: Path, shards: int, rate: float, seed: int, options: dict[str, Any]) -> None:
        self.log = Log(folder / "log")
        self.disk = FaultySystem(rate, seed)
        self.random = Random(seed)
        self.digests: dict[int, str] = {}
        self.job = Training(
            folder / "checkpoint", EPOCH, shards, self._saving, {"keep": KEEP, **options}, epochs=10**6
        )
        self._told = 0
        self._faults = 0

    def _saving(self) -> None:
        self.digests.pop(self.job.manager.steps, None)  # it becomes the newest
        self.digests[self.job.manager.steps] = self.job.rows_digest()

    def _tell(self) -> None:
        """Writes down the commits that were reported since, and how many calls failed."""
        saves = self.job.manager.saves
        for save in saves[self._told :]:
            self.log.write("saved", save.kind, save.step, self.digests[save.step])
        self._told = len(saves)
        if self.disk.faults != self._faults:
            self.log.write("faults", self.disk.faults - self._faults)
            self._faults = self.disk.faults
        while len(self.digests) > _MOST_DIGESTS:
            del self.digests[next(iter(self.digests))]

    def _again(self, action: Any) -> Any:
        """Does `action` until the disk lets it."""
        while True:
            try:
                return action()
            except OSError as error:
                self.log.write("refused", error.errno)

    def resume(self) -> None:
        manager = self.job.manager
        report = manager.resume()
        self.log.write("resumed", 0 if report is None else report.step, self.job.rows_digest())
        manager.start()
        self.disk.armed = True

    def recover(self) -> None:
        """Loses a shard's rows and goes back to the newest exact point."""
        manager = self.job.manager
        self._again(manager.flush)
        self._tell()
        shard = self.random.randrange(len(manager.shards))
        report = self._again(lambda: manager.recover([shard]))
        self.log.write("resumed", report.step, self.job.rows_digest())

    def train(self, over: Callable[[], bool]) -> None:
        """Trains until `over` says so after a step; recovers now and then."""
        measured = 0.0
        for batch in self.job.loader:
            train_step(self.job.model, self.job.dense, batch)
            try:
                self.job.manager.step(BATCH)  # counts the step even when a save has failed
            except OSError as error:
                self.log.write("refused", error.errno)
            self._tell()
            now = time.monotonic()
            if now - measured >= 1:
                measured = now
                self.log.write("memory", round(memory_mb(), 2), descriptors())
            if over():
                break
            if self.random.random() < 1 / 400:
                self.recover()
            time.sleep(0.003)

    def close(self) -> None:
        self.disk.armed = False
        self._again(self.job.manager.flush)
        self._saving()
        self._again(self.job.manager.close)
        self._tell()
        self.log.write("trained", self.job.manager.steps, self.job.digest())


def live(folder: Path, shards: int, rate: float, seed: int, seconds: float, options: dict[str, Any]) -> None:
    """Trains the job in `folder` for `seconds`, then closes it. Errors go to the file `stderr` there."""
    descriptor = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    torch.set_num_threads(1)
    life = Life(folder, shards, rate, seed, options)
    with system.use(life.disk):
        life.resume()
        end = time.monotonic() + seconds
        life.train(lambda: time.monotonic() >= end)
        life.close()
