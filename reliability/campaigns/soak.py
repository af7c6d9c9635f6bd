"""Trains for long on a disk that fails now and then, with recoveries and kills: nothing may be lost.

Training is a function of the steps alone, so every restore of a step must give the very rows it had, whoever
trained it and however often. Memory and open files of the process must stay as they are.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from campaigns.command import main
from campaigns.processes import processes
from campaigns.soaked import EPOCH, KEEP, live
from campaigns.training import digest_of_rows, undisturbed
from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store import CheckpointStore, CollectionSchema, RestorePlan, StoredRows, verify

_READINGS = 5


class Sink:
    """Rows that a restore gives."""

    def __init__(self, schema: CollectionSchema) -> None:
        self.schema = schema
        self.weight = {t.name: np.full((t.rows, t.dim), np.nan, np.float32) for t in schema.tables}
        self.state = {t.name: np.full(t.rows, np.nan, np.float32) for t in schema.tables}

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            self.weight[each.table][found.rows] = found.weight
            self.state[each.table][found.rows] = found.state

    def arrays(self) -> list[NDArray[np.float32]]:
        return [part[t.name] for t in self.schema.tables for part in (self.weight, self.state)]


def restored(plan: RestorePlan, schema: CollectionSchema) -> str:
    """The digest of the rows that a plan gives."""
    sink = Sink(schema)
    plan.apply(sink)
    return digest_of_rows(sink.arrays())


@dataclass
class Account:
    """What was written down by all processes of the job, and what is wrong with it."""

    at: int = 0
    exact: int = -1
    saves: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    refused: int = 0
    restores: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    series: list[list[tuple[float, int]]] = field(default_factory=list)
    trained: tuple[int, str] | None = None
    problems: list[str] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Takes the lines that came since."""
        with path.open("rb") as file:
            file.seek(self.at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.decode().splitlines():
            what, *words = line.split()
            getattr(self, f"_{what}")(*words)

    def _same(self, step: int, digest: str, what: str) -> None:
        if self.digests.setdefault(step, digest) != digest:
            self.problems.append(f"{what}: other rows at step {step} than before")

    def _saved(self, kind: str, step: str, digest: str) -> None:
        self.saves[kind] += 1
        self._same(int(step), digest, f"saved {kind}")
        if kind != "priority":
            self.exact = max(self.exact, int(step))

    def _resumed(self, step: str, digest: str) -> None:
        self.restores += 1
        self._same(int(step), digest, "restored")
        if int(step) < self.exact:
            self.problems.append(f"restored step {step}, reported was {self.exact}")

    def _faults(self, count: str) -> None:
        self.faults += int(count)

    def _refused(self, _code: str) -> None:
        self.refused += 1

    def _memory(self, mb: str, files: str) -> None:
        self.series[-1].append((float(mb), int(files)))

    def _trained(self, step: str, digest: str) -> None:
        self.trained = int(step), digest

    def check(self, path: Path, *, alone: bool) -> None:
        """Restores what is on disk; `alone`: nobody writes, so all that is kept must be right.

        Beside a writer a restore is made again when retention has removed a point between its two readings.
        """
        for left in reversed(range(1 if alone else _READINGS)):
            try:
                self._check(CheckpointStore(path), alone=alone)
                break
            except (CorruptionError, NoCheckpointError) as error:
                if not left and (alone or self.exact >= 0):
                    self.problems.append(f"on disk: {error}")
        if alone:
            self.problems += verify(path)

    def _check(self, store: CheckpointStore, *, alone: bool) -> None:
        points = store.points()[:KEEP] if alone else [store.latest()]
        for point in points:
            digest = restored(point.plan(), point.schema)
            if point.step in self.digests:
                self._same(point.step, digest, "on disk")
        newest = max((point.step for point in points), default=-1)
        if newest < self.exact:
            self.problems.append(f"step {newest} is on disk, reported was {self.exact}")

    def growth(self) -> tuple[float, int]:
        """How much memory (MB) and open files grew, at most, in a life after its second quarter began."""
        mb, files = [0.0], [0]
        for series in self.series:
            quarter = len(series) // 4
            if quarter:
                early, late = series[quarter : 2 * quarter], series[-quarter:]
                mb.append(statistics.median(m for m, _ in late) - statistics.median(m for m, _ in early))
                files.append(min(f for _, f in late) - min(f for _, f in early))  # without passing ones
        return max(mb), max(files)


def run(
    *, seconds: float = 1200.0, lives: int = 6, shards: int = 4, rate: float = 0.002, seed: int = 0
) -> dict[str, Any]:
    """Train for `seconds` in `lives` processes, of which every other is killed; each `rate`-th call fails."""
    random, account, started = Random(seed), Account(), time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for life in range(lives):
            last = life == lives - 1
            account.series.append([])
            length = seconds / lives
            process = processes().Process(target=live, args=(folder, shards, rate, seed + life, length, {}))
            process.start()
            end = time.monotonic() + length
            if life % 2 == 0 and not last:
                end -= random.uniform(0.0, 2.0)
            while time.monotonic() < end and process.is_alive():
                time.sleep(1)
                if (folder / "log").exists():
                    account.read(folder / "log")
                    account.check(folder / "checkpoint", alone=False)
            if life % 2 == 0 and not last:
                process.kill()
            process.join()
            if process.exitcode not in (0, -9):
                account.problems.append((folder / "stderr").read_text()[-2000:])
            account.read(folder / "log")
            account.check(folder / "checkpoint", alone=True)
    trained = account.trained
    if trained is None or undisturbed(trained[0], EPOCH) != trained[1]:
        account.problems.append(f"{trained}: not what an undisturbed run trains")
    mb, files = account.growth()
    return {
        "seconds": round(time.monotonic() - started),
        "faults": account.faults,
        "lost": len(account.problems),
        "rss_growth_mb": round(mb, 2),
        "descriptor_growth": files,
        "lives": lives,
        "steps": trained[0] if trained else 0,
        "saves": dict(sorted(account.saves.items())),
        "failed_saves": account.refused,
        "restores": account.restores,
        "series": [thinned(series) for series in account.series],
        "problems": account.problems[:20],
    }


def thinned(series: list[tuple[float, int]]) -> list[list[float]]:
    """About ten of the measurements of a life."""
    return [[mb, files] for mb, files in series[:: max(1, len(series) // 10)]]


if __name__ == "__main__":
    main(run)
