"""Fair timing of two sides in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

WARM_UP = 3

Call = Callable[[Any], object]


@dataclass(kw_only=True)
class Times:
    """Seconds of the calls of both sides; call 2i and 2i + 1 of each belong to round i."""

    ours: list[float] = field(default_factory=list)
    yardstick: list[float] = field(default_factory=list)

    @property
    def ours_ms(self) -> float:
        """Median of ours, in milliseconds."""
        return median(self.ours) * 1e3

    @property
    def yardstick_ms(self) -> float:
        """Median of the yardstick, in milliseconds."""
        return median(self.yardstick) * 1e3

    @property
    def ratio(self) -> float:
        """Median over the rounds of yardstick / ours: above 1, ours is faster."""
        pairs = zip(_pair_sums(self.yardstick), _pair_sums(self.ours), strict=True)
        return median(other / mine for other, mine in pairs)


def _pair_sums(times: list[float]) -> list[float]:
    return [first + second for first, second in zip(times[::2], times[1::2], strict=True)]


def timed(side: Call, log: list[float]) -> Call:
    """Return `side` with the seconds of each call put into `log`."""

    def call(argument: Any) -> object:
        begin = perf_counter()
        answer = side(argument)
        log.append(perf_counter() - begin)
        return answer

    return call


class Compare:
    """Times ours, yardstick, yardstick, ours, and so on, with a new input for every call.

    pytest-benchmark's table shows the last call of each round, `extra_info` the medians and the ratio of all
    of them.
    """

    def __init__(self, benchmark: BenchmarkFixture, lines: list[str], name: str) -> None:
        self._benchmark = benchmark
        self._lines = lines
        self._name = name

    @property
    def timed(self) -> bool:
        """False under `--benchmark-disable`: use small shapes, the answers are all that counts."""
        return not self._benchmark.disabled

    def inputs(self, rounds: int) -> int:
        """Return how many inputs a comparison of `rounds` rounds takes."""
        return 2 * WARM_UP + 4 * rounds if self.timed else 2

    def __call__(
        self, ours: Call, yardstick: Call, inputs: Iterator[Any], *, rounds: int, group: str, **extra: object
    ) -> Times:
        """Compare both and return all times; with timing off each side runs once."""
        times = Times()
        mine, other = timed(ours, times.ours), timed(yardstick, times.yardstick)

        def first_three() -> tuple[tuple[Any], dict[str, Any]]:
            for side in (mine, other, other):
                side(next(inputs))
            return (next(inputs),), {}

        self._benchmark.group = group
        if not self.timed:
            yardstick(next(inputs))
            self._benchmark.pedantic(ours, setup=lambda: ((next(inputs),), {}))
            return times
        for side in (ours, yardstick) * WARM_UP:
            side(next(inputs))
        self._benchmark.pedantic(mine, setup=first_three, rounds=rounds)
        self.report(times, **extra)
        return times

    def report(self, times: Times, **extra: object) -> None:
        """Enter the medians and the ratio into the results and the table at the end of the session."""
        self._benchmark.extra_info.update(
            ours_ms=times.ours_ms, yardstick_ms=times.yardstick_ms, ratio=times.ratio, **extra
        )
        parts = [f"{self._name:50} {times.ours_ms:10.3f} ms {times.yardstick_ms:10.3f} ms {times.ratio:8.3f}"]
        self._lines.append("  ".join(parts + [f"{key} {value}" for key, value in extra.items()]))
