"""How long a snapshot stops training: `begin` on 10M and 40M rows x dim 32, for every kind of selection."""

from __future__ import annotations

import gc
import itertools
from statistics import median
from typing import Any

import numpy as np
import pytest
from begin_rules import RULES, Rule
from checkpoints import table_of
from figures import Figures
from harness import timed
from pytest_benchmark.fixture import BenchmarkFixture
from sides import Ours

from cpr_native._native import Snapshot

SIZES = {"10M": 10_000_000, "40M": 40_000_000}
STEPS = 4
ROUNDS = 9
BATCHES = 40
SPOT_CHECKS = 1000


class Table:
    """A table that trains between snapshots, and a step after each `begin`, which no snapshot may hold."""

    def __init__(self, rows: int, *, timed: bool) -> None:
        shape = table_of(rows, timed)
        self.rows = shape.rows[0]
        self._ours = Ours(shape)
        self.engine = self._ours.module.engine
        self._batches = itertools.cycle(shape.batches(BATCHES))

    def train(self) -> None:
        for _ in range(STEPS):
            self._ours.step(next(self._batches))

    def prepare(self, rule: Rule) -> None:
        """Note what a snapshot that begins now must hold."""
        self._next = next(self._batches)
        self._written = self._next.unique().numpy()
        self._before = self.engine.weight(0)[self._written].copy()
        self._tracked = rule.tracker(self.engine)

    def check(self, snapshot: Snapshot, rule: Rule) -> None:
        """Train a step, then read the snapshot: the rule's rows as they were at `begin`."""
        self._ours.step(self._next)
        now = self.engine.weight(0)
        taken = []
        for chunk in snapshot:
            rows = chunk.rows.copy()
            written = np.isin(rows, self._written)
            before = self._before[np.searchsorted(self._written, rows[written])]
            assert np.array_equal(chunk.weight[written], before)
            others = np.flatnonzero(~written)[:SPOT_CHECKS]
            assert np.array_equal(chunk.weight[others], now[rows[others]])
            taken.append(rows)
            chunk.close()
        rule.check(self._tracked, np.concatenate(taken))
        snapshot.commit()


@pytest.fixture(scope="module", params=list(SIZES))
def sized(request: pytest.FixtureRequest) -> tuple[str, Table]:
    gc.collect()  # the table of the size before
    size: str = request.param
    return size, Table(SIZES[size], timed=not request.config.getoption("benchmark_disable"))


@pytest.mark.parametrize("name", list(RULES))
def test_snapshot_begin(
    benchmark: BenchmarkFixture, figures: Figures, sized: tuple[str, Table], name: str
) -> None:
    size, table = sized
    rule = RULES[name]
    snapshots: list[Snapshot] = []
    seconds: list[float] = []

    def train() -> tuple[tuple[Any], dict[str, Any]]:
        table.train()
        table.prepare(rule)
        return (rule.select(table.rows),), {}

    def begin(selection: Any) -> None:
        snapshots.append(table.engine.begin([selection], clears_dirty=rule.clears_dirty))

    def finish(_: Any) -> None:
        table.check(snapshots.pop(), rule)

    benchmark.group = f"snapshot begin {size}"
    benchmark.pedantic(timed(begin, seconds), setup=train, teardown=finish, rounds=ROUNDS)
    if benchmark.disabled:  # no teardown then
        table.check(snapshots.pop(), rule)
    else:
        figures.put("snapshot", "begin_ms_by_selection", size, **{name: median(seconds) * 1e3})
        worst = max(figures.get("snapshot", "begin_ms_by_selection", size).values())
        figures.put("snapshot", "begin_ms", **{size: worst})
