"""The process that `reattach` kills: it trains in shared memory and checks what it finds there."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from campaigns import training
from campaigns.training import Training, batches, train_step
from cpr_native._tensor import describe
from cpr_native.errors import NoCheckpointError
from cpr_native.recovery import RecoveryReport
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState
from cpr_native.shard import restore_rows
from cpr_native.shared import SharedMemory
from cpr_native.store import CheckpointStore


@dataclass(frozen=True, kw_only=True)
class Kill:
    """When the process kills itself: `after` microseconds from a moment of its life.

    "backward": before its `number`-th backward; "step": before its `number`-th call of the manager's `step`;
    "snapshot": when its `number`-th snapshot begins. "time": its parent does; "none".
    """

    phase: str
    number: int = 0
    after: int = 0


class Killer:
    """A thread that waits for the moment: the engine's calls don't hold the interpreter's lock."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._left = kill.number
        self._moment = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self._moment.wait()
        end = time.perf_counter() + self._kill.after / 1e6
        while time.perf_counter() < end:
            time.sleep(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def at(self, phase: str) -> None:
        """A moment of `phase` has come."""
        self._left -= phase == self._kill.phase
        if self._left == 0 and phase == self._kill.phase:
            self._moment.set()


def dense_of(model: training.Net, dense: torch.optim.Optimizer) -> DenseState:
    return DenseState(model, TrainedCollection(model).keys, optimizer=dense, loader=None)


def dump(path: Path, job: Training) -> None:
    """Keeps everything that training goes on from, for `problems_of` in the next process."""
    engine = job.model.tables.engine
    state: dict[str, Any] = {
        "rows": [torch.from_numpy(np.asarray(engine.weight(t)).copy()) for t in range(3)],
        "states": [torch.from_numpy(np.asarray(engine.state(t)).copy()) for t in range(3)],
        "dense": dense_of(job.model, job.dense).capture(),
        "scalars": job.model.tables.optimizer_scalars(),
        "steps": job.manager.steps,
    }
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def problems_of(path: Path, job: Training, report: RecoveryReport) -> list[str]:
    """Compares what was found with a copy that was trained from `dump` to the same step, row by row."""
    state = torch.load(path, weights_only=True)
    model = training.Net()
    dense = torch.optim.Adam(model.mlp.parameters(), lr=0.01)
    for table, (rows, states) in enumerate(zip(state["rows"], state["states"], strict=True)):
        ids = torch.arange(len(rows))
        model.tables.engine.load_rows(table, describe(ids), describe(rows), describe(states))
    model.tables.load_optimizer_scalars(state["scalars"])
    dense_of(model, dense).restore(state["dense"])
    for batch in batches(job.steps)[state["steps"] : report.step]:
        train_step(model, dense, batch)
    found = []
    for table, name in enumerate(f"t{number}" for number in range(3)):
        doubtful = report.doubtful_rows[name]
        sure = np.ones(len(state["rows"][table]), bool)
        sure[slice(None) if doubtful is None else doubtful] = False
        here, there = job.model.tables.engine, model.tables.engine
        for what in ("weight", "state"):
            same = getattr(here, what)(table)[sure].tobytes() == getattr(there, what)(table)[sure].tobytes()
            found += [] if same else [f"{name}: {what} of a row that is not in doubt differs"]
    left, right = (dense_of(m, d).aliased() for m, d in ((job.model, job.dense), (model, dense)))
    for kind in ("model", "optimizer"):
        found += [] if str(left[kind]) == str(right[kind]) else [f"dense {kind} differs"]
    return found


def lost_rows(path: Path, job: Training) -> list[str]:
    """Names tables with rows that are neither as the newest exact commit has them nor dirty."""
    try:
        point = CheckpointStore(path).latest("exact")
    except NoCheckpointError:
        return []
    model = training.Net()
    ranges = [row_range for shard in job.manager.shards for row_range in shard.ranges]
    restore_rows(model.tables.engine, ranges, point.plan(), dirty="clear")
    found = []
    for table in range(3):
        here, there = job.model.tables.engine, model.tables.engine
        differs = (np.asarray(here.weight(table)) != np.asarray(there.weight(table))).any(axis=1)
        differs |= np.asarray(here.state(table)) != np.asarray(there.state(table))
        lost = np.flatnonzero(differs & ~here.dirty(table).astype(bool))
        if len(lost):
            found.append(f"t{table}: {len(lost)} rows changed since commit {point.step} and not dirty")
    return found


def live(folder: Path, steps: int, rows: int, threads: int, kill: Kill) -> None:
    """Trains the job in `folder` to its end, from where it is; writes down what it finds and does."""
    descriptor = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 2)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    torch.set_num_threads(threads)
    training.ROWS = (rows, 300, 9)
    killer = Killer(kill)
    memory = SharedMemory(folder / "memory")
    with memory:
        job = Training(
            folder / "checkpoint", steps, 4, lambda: killer.at("snapshot"), {"shared": memory, "keep": None}
        )
    report = job.manager.resume()
    if report is not None:
        line = f"resumed {report.mode} {report.step} {report.seconds} {report.refused}\n"
        os.write(log, line.encode())
        if report.mode == "reattached":
            for problem in [
                *problems_of(folder / "dump", job, report),
                *lost_rows(folder / "checkpoint", job),
            ]:
                os.write(log, f"problem {problem}\n".encode())
    dump(folder / "dump", job)
    job.manager.start()
    os.write(log, b"ready\n")
    for batch in job.loader:
        killer.at("backward")
        train_step(job.model, job.dense, batch)
        os.write(log, f"batch {job.manager.steps + 1}\n".encode())
        killer.at("step")
        job.manager.step(training.BATCH)
        time.sleep(0.001)
    job.manager.close()
    for problem in lost_rows(folder / "checkpoint", job):
        os.write(log, f"problem {problem}\n".encode())
    os.write(log, f"trained {job.digest()}\n".encode())
