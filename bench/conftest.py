"""Fixtures of the benchmarks, and the table of comparisons at the end of the session."""

from __future__ import annotations

import pytest
from harness import Compare
from pytest_benchmark.fixture import BenchmarkFixture

_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


@pytest.fixture
def compare(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Compare:
    return Compare(benchmark, request.config.stash[_LINES], request.node.name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_LINES]:
        terminalreporter.section("ours, yardstick, how many times faster ours is (ABBA order, medians)")
        for line in config.stash[_LINES]:
            terminalreporter.write_line(line)
