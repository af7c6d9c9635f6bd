"""Kills a process that trains in shared memory: the next goes on from its last step, and loads nothing."""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch

from campaigns.command import main
from campaigns.processes import exit_code, processes
from campaigns.reattached import Kill, live
from cpr_native.config import EmbeddingBagConfig
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Delta
from cpr_native.recovery import RecoveryManager
from cpr_native.shared import SharedMemory
from cpr_native.store import CheckpointStore

_SETTINGS = ((2000, 1), (200_000, 1), (20_000, 4))  # rows of the largest table, threads


def draw(random: Random) -> tuple[Kill, float]:
    """An instant: in a backward and the update in it, in the manager's step, in a snapshot, or any."""
    phase = random.choice(("backward", "step", "snapshot", "time"))
    number = random.randint(2, 4) if phase == "snapshot" else random.randint(1, 25)
    return Kill(phase=phase, number=number, after=int(3000 * random.random() ** 3)), random.uniform(0.1, 0.4)


def wait_ready(log: Path, process: BaseProcess, delay: float) -> None:
    """Returns `delay` seconds after a process has written one more line "ready" to `log`, or is dead."""
    before = log.read_bytes().count(b"ready") if log.exists() else 0
    while process.is_alive() and (not log.exists() or log.read_bytes().count(b"ready") <= before):
        time.sleep(0.005)
    time.sleep(delay)


class Found:
    """What the log of a job says."""

    def __init__(self, folder: Path) -> None:
        self.modes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.lost = 0
        self.trained = ""
        self.seconds: list[float] = []
        trained = 0
        for line in (folder / "log").read_text().splitlines():
            what, _, rest = line.partition(" ")
            if what == "batch":
                trained = int(rest)
            elif what == "resumed":
                mode, step, seconds, refused = rest.split(" ", 3)
                self.modes[mode] += 1
                self.lost = max(self.lost, trained - int(step))
                self.seconds.append(float(seconds))
                self.problems += [] if mode == "reattached" else [f"{mode}: {refused}"]
                trained = int(step)
            elif what == "problem":
                self.problems.append(rest)
            elif what == "trained":
                self.trained = rest


def run(
    *, times: int = 50, steps: int = 60, seed: int = 0, sizes: str = "100000,1000000,10000000"
) -> dict[str, Any]:
    """Kill training in shared memory `times` over, in jobs of `steps` steps; start each again and compare.

    Each process compares what it finds with a copy trained from what the one before had found: rows outside
    those in doubt, their optimizer state and the dense side to the last bit, and that every row that the
    newest exact commit has otherwise is dirty. `sizes`: rows of tables, with commas: how long to attach to.
    """
    random, context = Random(seed), processes()
    modes: Counter[str] = Counter()
    at: Counter[str] = Counter()
    problems: list[str] = []
    lost_max = jobs = 0
    while at.total() < times:
        rows, threads = _SETTINGS[jobs % len(_SETTINGS)]
        with tempfile.TemporaryDirectory() as name:
            folder, code = Path(name), -signal.SIGKILL
            while code == -signal.SIGKILL:
                kill, delay = draw(random) if at.total() < times else (Kill(phase="none"), 0.0)
                process = context.Process(target=live, args=(folder, steps, rows, threads, kill))
                ready = partial(wait_ready, folder / "log", process, delay)
                code = exit_code(process, ready if kill.phase == "time" else None) or 0
                at[kill.phase] += code == -signal.SIGKILL
            found = Found(folder)
            modes += found.modes
            lost_max = max(lost_max, found.lost)
            problems += found.problems
            if not found.trained:
                problems.append((folder / "stderr").read_text()[-2000:])
        jobs += 1
    return {
        "tried": at.total(),
        "lost": len(problems),
        "at": dict(sorted(at.items())),
        "jobs": jobs,
        "modes": dict(modes),
        "batches_lost_max": lost_max,
        "samples_lost_max": lost_max * 32,
        "resume_ms": {rows: resume_ms(int(rows)) for rows in sizes.split(",") if rows},
        "problems": problems[:20],
    }


def _job(folder: Path, rows: int) -> tuple[RecoveryManager, SharedMemory, EmbeddingBagCollection]:
    memory = SharedMemory(folder / "memory")
    config = EmbeddingBagConfig(name="t", num_embeddings=rows, embedding_dim=16, feature_names=("f",))
    with memory:
        model = EmbeddingBagCollection([config], optimizer=RowWiseAdagrad(lr=0.01))
    manager = RecoveryManager(
        model,
        CheckpointStore(folder / "checkpoint"),
        policy=Delta(),
        job=Job(total_hours=1000.0, mtbf_hours=100.0, shards=1),
        costs=Costs(save=1.0, load=1.0, reschedule=0.1),
        total_samples=10**9,
        shared=memory,
    )
    return manager, memory, model


def resume_ms(rows: int, times: int = 5) -> dict[str, float]:
    """Milliseconds that a process takes to build `rows` rows of 16 floats in what it finds, and to resume."""
    with tempfile.TemporaryDirectory() as name:
        found = list(_attached(Path(name), rows, times))
    build, resume = zip(*found, strict=True)
    return {"build": round(1e3 * median(build), 2), "resume": round(1e3 * median(resume), 2)}


def _attached(folder: Path, rows: int, times: int) -> Iterator[tuple[float, float]]:
    """Leaves a table, then attaches to it `times` over: seconds of building it and of `resume`."""
    manager, memory, model = _job(folder, rows)
    manager.start()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, rows, 4096))
    out = model(ids, torch.arange(len(ids) + 1))
    out.sum().backward()
    manager.step(len(ids))
    manager.flush()
    manager.__exit__(KeyboardInterrupt)  # as if it were killed: nothing is committed
    del manager, memory, model, out
    for _ in range(times):
        started = time.perf_counter()
        manager, memory, model = _job(folder, rows)
        built = time.perf_counter()
        report = manager.resume()
        assert report is not None
        assert report.mode == "reattached", report.refused
        yield built - started, time.perf_counter() - built
        manager.__exit__(KeyboardInterrupt)
        del manager, memory, model


if __name__ == "__main__":
    main(run)
