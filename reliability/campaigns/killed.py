"""The process that `kills` kills: it trains, and writes down each commit that was reported to it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from campaigns.training import Training
from cpr_native.store import system

# The first of these source files in the stack of a system call tells what it is for.
_PHASES = {
    "retention.py": "retention",
    "compact": "compaction",
    "points.py": "restore",
    "restore.py": "restore",
    "chain_writer.py": "open",
    "chain_save.py": "save",
}
PHASES = ("save", "open", "restore", "retention", "compaction", "snapshot")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Where a process kills itself: before or after the `number`-th system call of a phase of its life.

    "snapshot": `number` microseconds after a snapshot began. "time": it does not, its parent kills it.
    """

    phase: str
    number: int = 0
    after: bool = False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def phase_of(frame: FrameType | None) -> str:
    """What the call is for that `frame` is in; a thread of the writer saves."""
    found = "save"
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "cpr_native" in path.parts:
            for name, phase in _PHASES.items():
                if path.name.startswith(name) and phase != "save":
                    # The outermost wins but for retention, which reads as a restore does.
                    if found not in ("retention", "compaction"):
                        found = phase
                    break
        frame = frame.f_back
    return found


class KillingSystem(system.System):
    """The operating system, until the call at which the process kills itself."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._left = kill.number
        self._mutex = threading.Lock()

    def __getattribute__(self, name: str) -> Any:
        real = object.__getattribute__(self, name)
        if name.startswith("_") or not callable(real):
            return real

        def call(*arguments: Any) -> Any:
            mine = phase_of(sys._getframe(1)) == self._kill.phase
            with self._mutex:
                self._left -= mine
                now = mine and self._left == 0
            if now and not self._kill.after:
                _die()
            result = real(*arguments)
            if now:
                _die()
            return result

        return call


class Log:
    """Lines in a file; they outlive the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._descriptor, " ".join(map(str, words)).encode() + b"\n")


def train(folder: Path, steps: int, shards: int, threads: int, kill: Kill, options: dict[str, Any]) -> None:
    """Trains the job in `folder` to its end, from where it is, and writes down the digest of what it trained.

    Errors go to the file `stderr` there.
    """
    descriptor = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 2)
    torch.set_num_threads(threads)
    log = Log(folder / "log")
    saves = 0

    def on_save() -> None:
        nonlocal saves
        saves += 1
        if kill.phase == "snapshot" and saves == 3:
            timer = threading.Timer(kill.number / 1e6, _die)
            timer.daemon = True
            timer.start()

    with system.use(KillingSystem(kill) if kill.phase not in ("time", "snapshot") else system.System()):
        job = Training(folder / "checkpoint", steps, shards, on_save, options)
        log.write("resuming")
        report = job.manager.resume()
        log.write("resumed", -1 if report is None else report.step)
        job.manager.start()
        # One failure of a shard in the middle of each life, which goes back to the newest exact point.
        failing = job.manager.steps + 11
        told = 0
        for batch in job.loader:
            job.step(batch)
            failed = job.manager.steps == failing
            if failed:
                job.manager.flush()
            for save in job.manager.saves[told:]:
                log.write("saved", save.kind, save.step)
            told = len(job.manager.saves)
            if failed:
                failing = -1
                log.write("resuming")
                log.write("resumed", job.manager.recover([0]).step)
            time.sleep(0.002)
        job.manager.close()
        log.write("saved", "delta", job.manager.steps)
        log.write("trained", job.digest())
