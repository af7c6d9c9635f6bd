"""Training of the demo's DLRM with a delta committed every second against training without, in pairs."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
from checkpoints import manager_of
from demo_training import SCALES, Training
from figures import Figures
from pytest_benchmark.fixture import BenchmarkFixture

from cpr_native import CheckpointStore, RecoveryManager

SECONDS = 5.0
EVERY = 1.0
PAIRS = {"demo": 6, "kaggle": 3}


class Pair:
    """Samples a second of windows with commits and without, in alternating order."""

    def __init__(self, training: Training, manager: RecoveryManager, seconds: float) -> None:
        self._training = training
        self._manager = manager
        self._seconds = seconds
        self.ratios: list[float] = []
        self.rates: dict[str, list[float]] = {"with": [], "without": []}

    def run(self) -> None:
        """Train a window of each kind; the other comes first the next time."""
        with_first = len(self.ratios) % 2 == 0
        for commits in (with_first, not with_first):
            self._manager.save("delta", wait=True)  # what the other window changed is not this one's
            rate = self._commits() if commits else self._plain()
            self.rates["with" if commits else "without"].append(rate)
        self.ratios.append(self.rates["with"][-1] / self.rates["without"][-1])

    def _commits(self) -> float:
        begin = perf_counter()
        end, due, steps = begin + self._seconds, begin, 0
        while perf_counter() < end:
            if perf_counter() >= due:
                self._manager.save("delta")
                due += EVERY
            self._training.step()
            self._manager.step(self._training.batch_size)
            steps += 1
        seconds = perf_counter() - begin
        self._manager.flush()
        return steps * self._training.batch_size / seconds

    def _plain(self) -> float:
        begin = perf_counter()
        end, steps = begin + self._seconds, 0
        while perf_counter() < end:
            self._training.step()
            steps += 1
        return steps * self._training.batch_size / (perf_counter() - begin)


def check_restored(training: Training, manager: RecoveryManager) -> None:
    """The deltas and the base must give back the rows as they are now."""
    manager.save("delta", wait=True)
    expected = training.weights()
    manager.recover(range(len(manager.shards)))
    for old, new in zip(expected, training.weights(), strict=True):
        assert (old == new).all()


@pytest.mark.parametrize("scale", list(SCALES))
def test_training_with_commits(
    benchmark: BenchmarkFixture, figures: Figures, tmp_path: Path, scale: str
) -> None:
    training = Training(SCALES[scale], timed=not benchmark.disabled)
    manager = manager_of(training.model, tmp_path / "checkpoints")
    manager.start()
    manager.flush()
    pair = Pair(training, manager, 0.05 if benchmark.disabled else SECONDS)
    benchmark.group = "training with a delta every second"
    benchmark.pedantic(pair.run, rounds=PAIRS[scale])
    deltas = [save for save in manager.saves if save.kind == "delta"]
    check_restored(training, manager)
    manager.close()
    assert len(list(CheckpointStore(tmp_path / "checkpoints").latest("exact").plan().segments)) >= len(deltas)
    if not benchmark.disabled:
        found: dict[str, Any] = {
            "ratio": median(pair.ratios),
            "samples_per_s": median(pair.rates["with"]),
            "control_samples_per_s": median(pair.rates["without"]),
            "rows_a_delta": median(save.rows for save in deltas),
        }
        figures.put("snapshot", "training", scale, rows=training.rows, **found)
        ratios = [entry["ratio"] for entry in figures.get("snapshot", "training").values()]
        figures.put("snapshot", train_with_commits=min(ratios))
        benchmark.extra_info.update(found)
