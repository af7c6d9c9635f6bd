"""Fails every system call of the store, once and for ever: nothing that was reported may be lost."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import click

from campaigns.io_points import History, crash_points, problem, work
from campaigns.memory_disk import MemoryDisk, after_kill
from cpr_native.errors import CprError
from cpr_native.store import system

CHANGING = ("open", "pwrite", "fsync", "fdatasync", "ftruncate", "mkdir", "link", "rename", "unlink")

# Which calls fail with what. "short": a write or a read of half the bytes, which is no error.
FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ENOSPC": (errno.ENOSPC, ("open", "pwrite", "fsync", "fdatasync", "mkdir", "link", "rename")),
    "EIO": (errno.EIO, (*CHANGING, "pread", "fstat", "lstat", "listdir", "close", "lock")),
    "EINTR": (errno.EINTR, ("open", "pwrite", "pread", "fsync", "fdatasync", "close")),
    "short": (0, ("pwrite", "pread")),
}
LASTING = ("ENOSPC", "EIO")  # also from one call on for ever: the disk is full, or gone

SHORT_LIVES = (("base", "delta", "priority"), ("compact",), ("delta", "base"))


class FaultyDisk(MemoryDisk):
    """Fails call number `at` as `kind` says, if that strikes such calls; `lasting`: all later ones too."""

    def __init__(self, at: int, kind: str, *, lasting: bool) -> None:
        super().__init__(before=self.strike)
        self.calls = 0
        self._at, self._kind, self._lasting = at, kind, lasting
        self._code, self._names = FAULTS[kind]

    def strike(self, call: str) -> None:
        self.calls += 1
        due = self.calls == self._at or (self._lasting and self.calls > self._at)
        if due and self._code and call in self._names:
            raise OSError(self._code, os.strerror(self._code))

    def _half(self, size: int) -> int:
        return (size + 1) // 2 if self._kind == "short" and self.calls + 1 == self._at else size

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, self._half(size), offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        return super().pwrite(fd, data[: self._half(len(data))], offset)


def faulty_run(at: int, kind: str, *, lasting: bool) -> int:
    """Runs the workload with a fault and looks at what is left; returns the calls that it made.

    Raises AssertionError when something was lost or left open.
    """
    disk, history = FaultyDisk(at, kind, lasting=lasting), History()
    what = f"call {at} failed with {kind}{' for ever' if lasting else ''}"
    with system.use(disk):
        try:
            work(SHORT_LIVES, history, lambda: disk.calls, tolerate=True)
        except (OSError, CprError):
            if not lasting:
                raise
    if disk.open_files:
        raise AssertionError(f"{what}: {disk.open_files} descriptors are left open")
    if wrong := problem(after_kill(disk.nodes), history, disk.calls):
        raise AssertionError(f"{what}: {wrong}")
    return disk.calls


def worth_failing(step: int) -> list[tuple[int, str, bool]]:
    """Every `step`th call that a fault of each kind can strike, by an undisturbed run."""
    names: list[str] = []
    with system.use(MemoryDisk(before=names.append)):
        work(SHORT_LIVES, History(), lambda: len(names), tolerate=False)
    cases = [
        (at, kind, lasting)
        for kind, (_, struck) in FAULTS.items()
        for lasting in ((False, True) if kind in LASTING else (False,))
        for at, name in enumerate(names, 1)
        if name in struck
    ]
    return cases[::step]


def _faulty_runs(cases: Iterable[tuple[int, str, bool]]) -> int:
    return sum(faulty_run(at, kind, lasting=lasting) > 0 for at, kind, lasting in cases)


def fault_points(step: int = 1, processes: int = 1) -> dict[str, int]:
    """Fails every `step`th call with every error it may have; raises AssertionError for a loss."""
    cases = worth_failing(step)
    if processes == 1:
        return {"tried": _faulty_runs(cases), "lost": 0}
    with ProcessPoolExecutor(processes) as pool:
        tried = sum(pool.map(_faulty_runs, [cases[i::64] for i in range(64)]))
    return {"tried": tried, "lost": 0}


def run(*, seeds: int = 4, step: int = 1, processes: int | None = None) -> dict[str, int]:
    """Both campaigns; counts of `tried` points and of those where something was `lost`, which raise.

    seeds: torn states of every call; step: fail every `step`th call; processes: None for one a processor.
    """
    processes = processes or len(os.sched_getaffinity(0))
    crashes, faults = crash_points(seeds, processes), fault_points(step, processes)
    return {
        "calls": crashes["calls"],
        "crash_states": crashes["tried"],
        "faults": faults["tried"],
        "tried": crashes["tried"] + faults["tried"],
        "lost": crashes["lost"] + faults["lost"],
    }


@click.command()
@click.option("--seeds", default=4, show_default=True, help="Torn states of every call.")
@click.option("--step", default=1, show_default=True, help="Fail every Nth call only.")
def main(seeds: int, step: int) -> None:
    """Stop and fail a workload at every system call."""
    click.echo(json.dumps(run(seeds=seeds, step=step)))


if __name__ == "__main__":
    main()
