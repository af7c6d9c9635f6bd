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
    """A table that trains between snapshots."""

    def __init__(self, rows: int, *, timed: bool) -> None:
        shape = table_of(rows, timed)
        self.rows = shape.rows[0]
        self._ours = Ours(shape)
        self.engine = self._ours.module.engine
        self._batches = itertools.cycle(shape.batches(BATCHES))

    def train(self) -> None:
        for _ in range(STEPS):
            self._ours.step(next(self._batches))

    def check(self, rule: Rule) -> None:
        """Take a snapshot, train a step and read it: it must hold the rule's rows as they were at `begin`."""
        ids = next(self._batches)
        step_rows = ids.unique().numpy()
        weight = self.engine.weight(0)
        before, tracked = weight[step_rows].copy(), rule.tracker(self.engine)
        snapshot = self.engine.begin([rule.select(self.rows)], clears_dirty=rule.clears_dirty)
        self._ours.step(ids)
        taken = []
        for chunk in snapshot:
            rows = chunk.rows.copy()
            written = np.isin(rows, step_rows)
            places = np.searchsorted(step_rows, rows[written])
            assert np.array_equal(chunk.weight[written], before[places])
            others = np.flatnonzero(~written)[:SPOT_CHECKS]
            assert np.array_equal(chunk.weight[others], weight[rows[others]])
            taken.append(rows)
            chunk.close()
        rule.check(tracked, np.concatenate(taken))
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
    table.train()
    table.check(rule)
    snapshots: list[Snapshot] = []
    seconds: list[float] = []

    def train() -> tuple[tuple[Any], dict[str, Any]]:
        table.train()
        return (rule.select(table.rows),), {}

    def begin(selection: Any) -> None:
        snapshots.append(table.engine.begin([selection], clears_dirty=rule.clears_dirty))

    def finish(_: Any) -> None:
        snapshot = snapshots.pop()
        for chunk in snapshot:
            chunk.close()
        snapshot.commit()

    benchmark.group = f"snapshot begin {size}"
    benchmark.pedantic(timed(begin, seconds), setup=train, teardown=finish, rounds=ROUNDS)
    if benchmark.disabled:  # no teardown then
        finish(None)
    else:
        figures.put("snapshot", "begin_ms_by_selection", size, **{name: median(seconds) * 1e3})
        worst = max(figures.get("snapshot", "begin_ms_by_selection", size).values())
        figures.put("snapshot", "begin_ms", **{size: worst})
