"""Random histories of steps, saves, writes from outside and restores: `DeviceEngine` as `Collection`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from device_memory import LANES
from device_pair import EnginePair
from device_saves import KINDS, assert_taken, selection
from engine import drain

from cpr_native._tensor import describe

ROWS, DIM = (700, 90), 8


class History:
    """Does the same to both engines of a pair, and compares what they say."""

    def __init__(self, seed: int, lanes: int, optimizer: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.pair = EnginePair(
            ROWS, DIM, lanes=lanes, optimizer=optimizer, spec={"drift": True}, max_staging_bytes=1 << 18
        )
        self.both = (self.pair.cpu, self.pair.device)
        for engine in self.both:
            engine.keep_saved(0, True)

    def step(self) -> None:
        self.pair.step(self.rng, bags=int(self.rng.integers(1, 60)))

    def save(self) -> None:
        kinds = self.rng.choice([kind for kind in KINDS if kind != "sampled"], len(ROWS))
        selections = [selection(kind, rows, self.rng) for kind, rows in zip(kinds, ROWS, strict=True)]
        options: dict[str, Any] = {
            "clears_dirty": bool(self.rng.random() < 0.5),
            "blocking": bool(self.rng.random() < 0.3),
        }
        snapshots = [engine.begin(selections, **options) for engine in self.both]
        for _ in range(int(self.rng.integers(0, 3))):
            self.step()
        found = [drain(snapshot, len(ROWS)) for snapshot in snapshots]
        assert_taken(found[1], found[0])
        end = "commit" if self.rng.random() < 0.6 else "abort"
        for snapshot in snapshots:
            getattr(snapshot, end)()

    def restore(self) -> None:
        table = int(self.rng.integers(len(ROWS)))
        begin, end = sorted(int(x) for x in self.rng.integers(0, ROWS[table] + 1, 2))
        rows = np.arange(begin, end)
        weight = self.rng.standard_normal((len(rows), DIM)).astype(np.float32)
        columns = self.pair.cpu.state_columns(table)
        state = self.rng.random((len(rows), columns) if columns > 1 else len(rows)).astype(np.float32)
        for engine in self.both:
            engine.discard_rows(table, begin, end)
            engine.reset_rows(table, begin, end)
            engine.clear_trackers(table, begin, end, dirty=True)
            given = describe(state) if columns else None
            engine.load_rows(table, describe(rows), describe(weight), given, dirty=begin % 2 == 0)
            engine.refresh_saved(table, begin, end)

    def write(self) -> None:
        table = int(self.rng.integers(len(ROWS)))
        rows = np.unique(self.rng.integers(0, ROWS[table], 20))
        for engine in self.both:
            engine.mark_dirty(table, describe(rows))

    def check(self) -> None:
        self.pair.assert_same()
        found, expected = (engine.changes(0, "l1", threads=1) for engine in (self.pair.device, self.pair.cpu))
        np.testing.assert_array_equal(found, expected)
        bounds = [0, 100, 100, 650, 700]
        sums = [int(self.pair.cpu.counts(0)[a:b].sum()) for a, b in pairwise(bounds)]
        assert self.pair.device.lookups(0, bounds).tolist() == sums


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    ("seed", "optimizer"), [(1, "adam"), (2, "row_wise_adagrad"), (3, "sgd"), (4, "adagrad")]
)
def test_a_history_leaves_the_same(seed: int, optimizer: str, lanes: int) -> None:
    history = History(seed, lanes, optimizer)
    moves = [history.step, history.step, history.save, history.save, history.restore, history.write]
    for _ in range(25):
        moves[int(history.rng.integers(len(moves)))]()
        history.check()
