"""Kills a training process at random points of its life: what was reported is there when it starts again."""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import torch

from campaigns.command import main
from campaigns.killed import PHASES, Kill, train
from campaigns.processes import exit_code, processes
from campaigns.training import undisturbed
from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, verify

# Shards and threads of the jobs, in turn.
SETTINGS = ((1, 1), (4, 5), (4, 1), (1, 5))
_MOST_CALLS = {"save": 400, "open": 40, "restore": 60, "retention": 120, "compaction": 200}


@dataclass
class Told:
    """What a job has written down since its history began anew: the newest exact commit, the newest one."""

    exact: int = -1
    newest: int = -1
    resumed: list[tuple[int, int]] = field(default_factory=list)
    trained: str = ""

    @classmethod
    def read(cls, path: Path) -> Told:
        told = cls()
        for line in path.read_text().splitlines() if path.exists() else []:
            what, *words = line.split()
            if what == "saved":
                told.newest = max(told.newest, int(words[1]))
                if words[0] != "priority":
                    told.exact = max(told.exact, int(words[1]))
            elif what == "resuming":
                told.newest = told.exact
            elif what == "resumed":
                told.resumed.append((told.exact, int(words[0])))
            elif what == "trained":
                told.trained = words[0]
        return told


def problems_of(folder: Path) -> list[str]:
    """What is wrong with the checkpoint of a job whose process is dead."""
    told, path = Told.read(folder / "log"), folder / "checkpoint"
    found = [
        f"resumed from step {got}, reported was {exact}" for exact, got in told.resumed[-2:] if got < exact
    ]
    for mode, step in (("exact", told.exact), ("running", told.newest)):
        try:
            point = CheckpointStore(path).latest(mode)  # type: ignore[arg-type]
            if point.step < step:
                found.append(f"{mode}: step {point.step} is there, reported was {step}")
            found += [f"{mode}: skipped {message}" for message in point.skipped]
        except NoCheckpointError as error:
            if step >= 0:
                found.append(f"{mode}: {error}; reported was step {step}")
    try:
        found += verify(path)
    except NoCheckpointError as error:
        if told.newest >= 0:
            found.append(str(error))
    return found


def draw(random: Random) -> tuple[Kill, float]:
    """An instant: every other by time alone, else at a system call of a phase, or during a snapshot."""
    if random.random() < 0.4:
        return Kill(phase="time"), random.uniform(0.0, 1.2)
    phase = random.choice(PHASES)
    number = (
        random.randint(0, 3000) if phase == "snapshot" else 1 + int(_MOST_CALLS[phase] * random.random() ** 2)
    )
    return Kill(phase=phase, number=number, after=random.random() < 0.5), 0.0


def run(*, times: int = 200, steps: int = 60, seed: int = 0) -> dict[str, Any]:
    """Kill training `times` over, in jobs of `steps` steps; start each again until it ends, and compare."""
    random, context = Random(seed), processes()
    wanted: dict[int, str] = {}
    at: Counter[str] = Counter()
    problems: list[str] = []
    jobs = lost = unequal = 0
    started = time.monotonic()
    for shards, threads in cycle(SETTINGS):
        with tempfile.TemporaryDirectory() as name:
            folder, code = Path(name), -signal.SIGKILL
            while code == -signal.SIGKILL:
                last = at.total() >= times
                kill, delay = (Kill(phase="none"), 0.0) if last else draw(random)
                process = context.Process(target=train, args=(folder, steps, shards, threads, kill, {}))
                code = exit_code(process, partial(time.sleep, delay) if kill.phase == "time" else None) or 0
                at[kill.phase] += code == -signal.SIGKILL
                found = problems_of(folder)
                lost += bool(found)
                problems += [f"{kill}: {message}" for message in found]
            trained = Told.read(folder / "log").trained
            if threads not in wanted:
                torch.set_num_threads(threads)
                wanted[threads] = undisturbed(steps)
            if trained != wanted[threads]:
                unequal += 1
                problems.append(
                    f"{shards} shards, {threads} threads: {(folder / 'stderr').read_text()[-2000:]}"
                )
            jobs += 1
        if at.total() >= times:
            break
    return {
        "tried": at.total(),
        "lost": lost,
        "at": dict(sorted(at.items())),
        "jobs": jobs,
        "unequal": unequal,
        "seconds": round(time.monotonic() - started),
        "problems": problems[:20],
    }


if __name__ == "__main__":
    main(run)
