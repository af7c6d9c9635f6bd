"""Shapes, Zipf ids and fair timing of two sides in one run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`tables` tables of `rows` x `dim`, one feature each; bags of `pooling` ids, `batch` bags a feature."""

    tables: int
    rows: int
    dim: int
    batch: int
    pooling: int = 1

    def __str__(self) -> str:
        return f"{self.tables}x{self.rows} dim {self.dim} batch {self.batch} pooling {self.pooling}"

    @property
    def ids(self) -> int:
        """Ids of one batch."""
        return self.tables * self.batch * self.pooling

    def offsets(self) -> Tensor:
        """Return the offsets of every batch: int64 [tables * batch + 1]."""
        return torch.arange(0, self.ids + 1, self.pooling, dtype=torch.int64)

    def batches(self, count: int, *, alpha: float = 1.05, seed: int = 0) -> list[Tensor]:
        """Return `count` batches of ids, int64 [ids], feature-major; Zipf(alpha) ranks, spread out."""
        rng = np.random.default_rng(seed)
        power = 1.0 - alpha
        batches = []
        for _ in range(count):
            uniform = rng.random(self.ids)
            rank = ((self.rows**power - 1.0) * uniform + 1.0) ** (1.0 / power) - 1.0
            rank = np.minimum(rank.astype(np.int64), self.rows - 1)
            batches.append(torch.from_numpy(rank * 2654435761 % self.rows))
        return batches

    def gradient(self) -> Tensor:
        """Return an output gradient: float32 [batch, tables * dim]."""
        generator = torch.Generator().manual_seed(7)
        return torch.randn(self.batch, self.tables * self.dim, generator=generator) * 0.01


# `cached` fits the second-level cache, `main` is a DLRM's, `large` is far beyond any cache and has bags of
# 10.
TIMED = {
    "cached": Shape(tables=26, rows=1000, dim=16, batch=2048),
    "main": Shape(tables=26, rows=100_000, dim=16, batch=2048),
    "large": Shape(tables=8, rows=500_000, dim=128, batch=2048, pooling=10),
}
CHECKED = {
    "cached": Shape(tables=3, rows=50, dim=16, batch=64),
    "main": Shape(tables=26, rows=500, dim=16, batch=128),
    "large": Shape(tables=2, rows=2000, dim=128, batch=64, pooling=10),
}
ROUNDS = 30
BATCHES = 20


def shape_of(name: str, timed: bool) -> Shape:
    """Return the named shape, a small one of its kind when nothing is timed."""
    return (TIMED if timed else CHECKED)[name]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Medians: seconds of one call, and the ratio yardstick / ours of a round (above 1: ours is faster)."""

    ours: float
    yardstick: float
    ratio: float


def abba(
    ours: Callable[[Any], object],
    yardstick: Callable[[Any], object],
    inputs: Iterator[Any],
    *,
    rounds: int,
) -> Comparison:
    """Time ours, yardstick, yardstick, ours, `rounds` times, with a fresh input for every call."""
    for side in (ours, yardstick) * 3:
        side(next(inputs))
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        first, second, third, last = (
            _seconds(side, next(inputs)) for side in (ours, yardstick, yardstick, ours)
        )
        times.append((first + last, second + third))
    return Comparison(
        ours=median(mine for mine, _ in times) / 2.0,
        yardstick=median(other for _, other in times) / 2.0,
        ratio=median(other / mine for mine, other in times),
    )


def _seconds(side: Callable[[Any], object], argument: Any) -> float:
    begin = perf_counter()
    side(argument)
    return perf_counter() - begin


class Compare:
    """Runs a comparison under pytest-benchmark and keeps one line of it for the end of the session."""

    def __init__(self, benchmark: BenchmarkFixture, lines: list[str], name: str) -> None:
        self._benchmark = benchmark
        self._lines = lines
        self._name = name

    @property
    def timed(self) -> bool:
        """False under `--benchmark-disable`: use small shapes, the answers are all that counts."""
        return not self._benchmark.disabled

    def __call__(
        self,
        ours: Callable[[Any], object],
        yardstick: Callable[[Any], object],
        inputs: Sequence[Any],
        *,
        rounds: int,
        group: str,
        **extra: object,
    ) -> None:
        """Compare both; pytest-benchmark's table shows ours, `extra_info` both medians and their ratio."""
        self._benchmark.group = group
        cycle = itertools.cycle(inputs)
        if self.timed:
            result = abba(ours, yardstick, cycle, rounds=rounds)
            self._benchmark.extra_info.update(
                ours_ms=result.ours * 1e3, yardstick_ms=result.yardstick * 1e3, ratio=result.ratio, **extra
            )
            self._lines.append(
                f"{self._name:62} {result.ours * 1e3:10.3f} ms {result.yardstick * 1e3:10.3f} ms "
                f"{result.ratio:8.2f}x  " + ", ".join(f"{key} {value}" for key, value in extra.items())
            )
        self._benchmark.pedantic(ours, setup=lambda: ((next(cycle),), {}), rounds=rounds if self.timed else 1)
