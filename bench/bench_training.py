"""Steps of the demo's DLRM while all rows are copied by a snapshot, or saved, against controls without.

Windows take turns: steps from `begin` until all is read (or durable), then about as many without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
import pytest
from checkpoints import manager_of
from demo_training import SCALES, Training, check_snapshot
from figures import Figures
from pytest_benchmark.fixture import BenchmarkFixture

WINDOWS = {"demo": 150, "kaggle": 4}
SAVES = 30
LEAST_CONTROLS = 4
TRACED = 150


class Job(Protocol):
    """Something that runs beside training; `stall_seconds` is known once it is done."""

    stall_seconds: float

    def done(self) -> bool: ...


class Copied:
    """A snapshot of all rows, read by a thread that gives the memory back at once."""

    def __init__(self, training: Training) -> None:
        self.stall_seconds = 0.0
        self._snapshot = training.begin()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for chunk in self._snapshot:
            chunk.close()
        self.stall_seconds = self._snapshot.stall_seconds
        self._snapshot.commit()

    def done(self) -> bool:
        return not self._reader.is_alive()


class Windows:
    """The seconds of every step, and the engine's stalls a step."""

    def __init__(self, training: Training, start: Callable[[], Job]) -> None:
        self._training = training
        self._start = start
        self.during: list[list[float]] = []
        self.control: list[list[float]] = [[training.step() for _ in range(LEAST_CONTROLS)]]
        self.stalls: list[float] = []

    def run(self) -> None:
        """Train from the start of a job to its end (`begin` belongs to the first step), then without."""
        begin = perf_counter()
        job = self._start()
        begun = perf_counter() - begin
        steps = [self._training.step() + begun]
        while not job.done():
            steps.append(self._training.step())
        self.during.append(steps)
        self.stalls.append(job.stall_seconds / len(steps))
        self.control.append([self._training.step() for _ in range(max(len(steps), LEAST_CONTROLS))])

    def figures(self) -> dict[str, object]:
        """Return the quantiles of both kinds of steps in ms, their ratios and the largest stall a step."""
        during, control = np.concatenate(self.during) * 1e3, np.concatenate(self.control) * 1e3
        result: dict[str, object] = {"stall_ms_a_step": max(self.stalls) * 1e3, "steps": len(during)}
        for quantile in (50, 95):
            with_it, without = (float(np.percentile(steps, quantile)) for steps in (during, control))
            result |= {f"p{quantile}_ms": with_it, f"control_p{quantile}_ms": without}
            result[f"p{quantile}_ratio"] = with_it / without
        return result

    def trace(self) -> dict[str, list[float]]:
        """Return the last window in ms, and as many steps before and after it as `TRACED` at most."""
        before, after = self.control[-2][-TRACED:], self.control[-1][:TRACED]
        parts = {"before": before, "during": self.during[-1], "after": after}
        return {name: [seconds * 1e3 for seconds in steps] for name, steps in parts.items()}


@pytest.mark.parametrize("scale", list(SCALES))
def test_steps_during_a_snapshot(benchmark: BenchmarkFixture, figures: Figures, scale: str) -> None:
    training = Training(SCALES[scale], timed=not benchmark.disabled)
    check_snapshot(training, steps=3)
    windows = Windows(training, lambda: Copied(training))
    benchmark.group = "steps during a snapshot"
    benchmark.pedantic(windows.run, rounds=WINDOWS[scale])
    if not benchmark.disabled:
        found = windows.figures()
        figures.put("snapshot", "steps", scale, rows=training.rows, **found)
        ratios = [entry["p95_ratio"] for entry in figures.get("snapshot", "steps").values()]
        figures.put("snapshot", step_p95_ratio=max(ratios))
        benchmark.extra_info.update(found)
        if scale == "kaggle":
            figures.put("snapshot", "step_trace_ms", **windows.trace())


class Saved:
    """A base saved in the background."""

    def __init__(self, training: Training, directory: Path) -> None:
        self._manager = manager_of(training.model, directory)
        self._manager.start()
        self._manager.flush()
        self.stall_seconds = 0.0
        self._expected = 0

    def start(self) -> Saved:
        self._expected = len(self._manager.saves) + 1
        assert self._manager.save("base")
        return self

    def done(self) -> bool:
        self._manager.step(1)
        if len(self._manager.saves) < self._expected:
            return False
        self.stall_seconds = self._manager.saves[-1].stall_seconds
        return True

    def close(self) -> None:
        self._manager.close()


def test_steps_during_a_save(benchmark: BenchmarkFixture, figures: Figures, tmp_path: Path) -> None:
    training = Training(SCALES["demo"], timed=not benchmark.disabled)
    saved = Saved(training, tmp_path / "checkpoints")
    windows = Windows(training, saved.start)
    benchmark.group = "steps during a save"
    benchmark.pedantic(windows.run, rounds=SAVES)
    saved.close()
    if not benchmark.disabled:
        found = windows.figures()
        figures.put("snapshot", "steps_during_save", rows=training.rows, **found)
        benchmark.extra_info.update(found)
