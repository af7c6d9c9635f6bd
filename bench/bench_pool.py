"""The engine beside torch's threads: a step of an MLP over the tables against both steps alone.

Blocks of steps of one kind take turns, since an MLP's step right after a lookup would not be alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import torch
from figures import Figures
from pytest_benchmark.fixture import BenchmarkFixture
from shapes import shape_of
from sides import Ours
from torch import Tensor, nn

BLOCK = 12
SETTLING = 4  # steps at the start of a block that are not timed
ROUNDS = 20
BATCHES = 250  # a batch comes again when its rows have left the caches
WIDTHS = (256, 64, 1)


class Parts:
    """An MLP over the output of S1's tables, each part with everything that it does in the whole."""

    def __init__(self, *, timed: bool) -> None:
        self.shape = shape_of("S1", timed)
        self.ours = Ours(self.shape)
        torch.manual_seed(0)
        widths = (self.shape.tables * self.shape.dim, *WIDTHS)
        layers = [layer for fan in itertools.pairwise(widths) for layer in (nn.Linear(*fan), nn.ReLU())]
        self.mlp = nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.SGD(self.mlp.parameters(), lr=0.01)
        self.input = torch.randn(self.shape.batch, widths[0], requires_grad=True)
        self.offsets = self.shape.offsets()

    def tables_step(self, ids: Tensor) -> None:
        self.ours.step(ids)

    def mlp_step(self, _: Tensor) -> None:
        self.optimizer.zero_grad()
        self.input.grad = None
        self.mlp(self.input).square().mean().backward()
        self.optimizer.step()

    def whole_step(self, ids: Tensor) -> None:
        self.optimizer.zero_grad()
        self.mlp(self.ours.module(ids, self.offsets)).square().mean().backward()
        self.optimizer.step()


def block(step: Callable[[Tensor], None], batches: Iterator[Tensor]) -> list[float]:
    """Return the seconds of the next steps, without those that settle."""
    seconds = []
    for ids in itertools.islice(batches, BLOCK):
        begin = perf_counter()
        step(ids)
        seconds.append(perf_counter() - begin)
    return seconds[SETTLING:]


def check(parts: Parts, ids: Tensor) -> None:
    """The whole must do what its parts do: the same output, rows and MLP changed."""
    out = parts.ours.forward(ids)
    expected = parts.mlp(out)
    torch.testing.assert_close(parts.mlp(parts.ours.module(ids, parts.offsets)), expected)
    rows = [weight.clone() for weight in parts.ours.weights()]
    layers = [parameter.clone() for parameter in parts.mlp.parameters()]
    parts.whole_step(ids)
    assert not any(torch.equal(old, new) for old, new in zip(rows, parts.ours.weights(), strict=True))
    assert not any(torch.equal(old, new) for old, new in zip(layers, parts.mlp.parameters(), strict=True))


def test_step_with_an_mlp(benchmark: BenchmarkFixture, figures: Figures) -> None:
    timed = not benchmark.disabled
    parts = Parts(timed=timed)
    batches = itertools.cycle(parts.shape.batches(BATCHES if timed else 2))
    check(parts, next(batches))
    seconds: dict[str, list[float]] = {"mlp": [], "tables": [], "whole": []}
    overheads: list[float] = []

    def blocks() -> None:
        kinds = [("mlp", parts.mlp_step), ("tables", parts.tables_step), ("whole", parts.whole_step)]
        medians = {}
        for kind, step in kinds if len(overheads) % 2 == 0 else kinds[::-1]:
            found = block(step, batches)
            seconds[kind] += found
            medians[kind] = median(found)
        overheads.append(medians["whole"] / (medians["mlp"] + medians["tables"]) - 1.0)

    benchmark.group = "pool"
    benchmark.pedantic(blocks, rounds=ROUNDS)
    if timed:
        ms = {f"{kind}_ms": median(times) * 1e3 for kind, times in seconds.items()}
        figures.put("engine", "pool", **ms)
        figures.put("engine", pool_overhead=median(overheads))
        benchmark.extra_info.update(ms, overhead=median(overheads))
