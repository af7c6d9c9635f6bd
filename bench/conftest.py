"""Fixtures of the benchmarks; the table of comparisons and the files of figures at the end of the session."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from cores import CORES  # isort: split

import pytest
import torch
from figures import Figures
from harness import Compare
from pytest_benchmark.fixture import BenchmarkFixture
from working_directory import empty_working_directory

__all__ = ["empty_working_directory"]

_LINES = pytest.StashKey[list[str]]()
_FIGURES = pytest.StashKey[Figures]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []
    config.stash[_FIGURES] = Figures()
    torch.set_num_threads(CORES)


@pytest.fixture
def compare(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Compare:
    return Compare(benchmark, request.config.stash[_LINES], request.node.name)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    return request.config.stash[_FIGURES]


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    """Free the tables of a benchmark before the next one makes its own."""
    yield
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_LINES]:
        terminalreporter.section("ours, yardstick, yardstick / ours (ABBA order, medians)")
        for line in config.stash[_LINES]:
            terminalreporter.write_line(line)
    for path in config.stash[_FIGURES].write(config.rootpath / "build" / "bench"):
        terminalreporter.write_line(f"figures: {path}")
