"""Training over four shards in processes of this machine: against the local collection and the plain pattern.

- C1, the embedding part of a step, against the local collection: lookup, backward, everything applied.
- C1, the whole step of a DLRM, against the same DLRM over the local collection.
- C1, the embedding part under SGD, against the plain pattern (`plain_pattern.py`).
- C2, lookups while all shards of 256 MB save all rows, against lookups without, in pairs.

Each over pipes and over Ray. Ours sends the next batch's lookups ahead; windows of four batches end when
shards have applied all. Answers are compared before anything is timed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest
import torch
from carriers import CARRIERS, TIMEOUT, Carrier, carrier_of
from cluster_sides import (
    LEARNING_RATE,
    SHARDS,
    WINDOW,
    Embeddings,
    Model,
    Plain,
    bytes_of,
    local_of,
    sharded_of,
    spec_of,
)
from figures import Figures
from harness import Compare
from shapes import Shape, shape_of
from torch import Tensor

from cpr_native import SGD, RowWiseAdagrad
from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.messages import CutRequest

ROUNDS = 6
SAVES = 20


@pytest.fixture(scope="module", params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> Iterator[Carrier]:
    with carrier_of(request.param, not request.config.getoption("benchmark_disable")) as made:
        yield made


def about(shape: Shape) -> dict[str, Any]:
    """Return what the figures depend on beside the machine; `load`: mean of processes that ran or waited."""
    return {
        "tables": shape.tables,
        "rows": shape.rows[0],
        "dim": shape.dim,
        "batch": shape.batch,
        "load": round(os.getloadavg()[1], 1),
    }


def windows(shape: Shape, number: int) -> Iterator[list[Tensor]]:
    """Yield windows of different batches."""
    batches = shape.batches(number * WINDOW)
    for first in range(0, len(batches), WINDOW):
        yield batches[first : first + WINDOW]


def assert_same(ours: Any, other: Any, inputs: Iterator[Sequence[Tensor]], *, exact: bool = True) -> None:
    """Train both on two windows: what they return must be equal, to the bit or to rounding."""
    for _ in range(2):
        window = next(inputs)
        for mine, theirs in zip(ours.run(window), other.run(window), strict=True):
            if exact:
                assert torch.equal(mine, theirs)
            else:
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("part", ["embedding", "step"])
def test_training_against_the_local_collection(
    compare: Compare, figures: Figures, tmp_path: Path, carrier: Carrier, part: str
) -> None:
    shape = shape_of("C1", compare.timed)
    spec = spec_of(shape, RowWiseAdagrad(lr=LEARNING_RATE), tmp_path)
    side = Embeddings if part == "embedding" else Model
    with carrier.shards(spec) as directory:
        module = sharded_of(directory, spec)
        ours, local = side(module, shape), side(local_of(spec), shape)
        inputs = windows(shape, 2 + compare.inputs(ROUNDS))
        assert_same(ours, local, inputs)
        moved = bytes_of(module, shape.batches(1)[0], shape.offsets(), shape.dim)
        times = compare(
            local.run,
            ours.run,
            inputs,
            rounds=ROUNDS,
            group=f"C1 {part} over {carrier.name}, local",
            megabytes_moved=moved / 1e6,
        )
    if compare.timed:
        figures.put(
            "cluster",
            carrier.name,
            part,
            times_local=times.ratio,
            sharded_ms=times.yardstick_ms / WINDOW,
            local_ms=times.ours_ms / WINDOW,
            megabytes_moved=moved / 1e6,
            **about(shape),
        )


def test_embedding_part_against_the_plain_pattern(
    compare: Compare, figures: Figures, tmp_path: Path, carrier: Carrier
) -> None:
    shape = shape_of("C1", compare.timed)
    spec = spec_of(shape, SGD(lr=LEARNING_RATE), tmp_path)
    arguments = (-(-shape.rows[0] // SHARDS), shape.tables, shape.dim, LEARNING_RATE)
    with (
        carrier.plain(SHARDS, arguments) as send,
        carrier.shards(spec) as directory,
    ):
        ours = Embeddings(sharded_of(directory, spec), shape)
        plain = Plain(send, shape, spec)
        inputs = windows(shape, 2 + compare.inputs(ROUNDS))
        assert_same(ours, plain, inputs, exact=False)
        moved = plain.trainer.bytes_moved / (2 * WINDOW)
        times = compare(
            ours.run,
            plain.run,
            inputs,
            rounds=ROUNDS,
            group=f"C1 embedding over {carrier.name}, plain pattern",
            megabytes_moved_plain=moved / 1e6,
        )
    if compare.timed:
        figures.put(
            "cluster",
            carrier.name,
            "plain",
            speed_up=times.ratio,
            sharded_ms=times.ours_ms / WINDOW,
            plain_ms=times.yardstick_ms / WINDOW,
            megabytes_moved=moved / 1e6,
            **about(shape),
        )


class Saves:
    """Bases of all shards, one after the other; the files of the one before are removed."""

    def __init__(self, clients: ShardClients, ours: Embeddings, folder: Path) -> None:
        self._clients, self._ours, self._folder = clients, ours, folder
        self._numbers = count(1)
        self._pending: list[Any] = []

    def begin(self, ids: Tensor) -> None:
        """Train one step and have every shard save all its rows after it."""
        for path in self._folder.rglob("*.safetensors"):
            path.unlink()
        number = next(self._numbers)
        handles = [self._clients.handle(shard) for shard in range(SHARDS)]
        for handle in handles:
            request = CutRequest(
                number=number,
                generation=1,
                incarnation=handle.incarnation,
                step=self._clients.step,
                kind="base",
                seconds=TIMEOUT,
            )
            handle.call("cut", request).result(TIMEOUT)
        self._ours.run([ids])
        self._pending = [handle.call("committed", number, TIMEOUT) for handle in handles]

    def done(self) -> bool:
        """Whether all have committed."""
        while self._pending:
            try:
                self._pending[-1].result(0.0)
            except TimeoutError:
                return False
            self._pending.pop()
        return True


def test_lookups_beside_saves(
    compare: Compare, figures: Figures, tmp_path: Path, carrier: Carrier, benchmark: Any
) -> None:
    shape = shape_of("C2", compare.timed)
    spec = spec_of(shape, RowWiseAdagrad(lr=LEARNING_RATE), tmp_path)
    pairs: list[float] = []
    during: list[float] = []
    without: list[float] = []
    with carrier.shards(spec) as directory:
        module = sharded_of(directory, spec)
        ours, local = Embeddings(module, shape), local_of(spec)
        batches = shape.batches(8)
        offsets = shape.offsets()

        def look_up(number: int) -> float:
            begin = perf_counter()
            with torch.no_grad():
                module(batches[number % 8], offsets)
            return perf_counter() - begin

        saves = Saves(module.clients, ours, tmp_path)
        with torch.no_grad():
            assert torch.equal(module(batches[0], offsets), local(batches[0], offsets))
        for number in range(8):
            look_up(number)
        for number in range(SAVES if compare.timed else 1):
            saves.begin(batches[number % 8])
            beside: list[float] = []
            while not saves.done():
                beside.append(look_up(len(beside)))
            alone = [look_up(at) for at in range(len(beside))]
            if beside:
                pairs.append(median(beside) / median(alone))
                during += beside
                without += alone
        benchmark.pedantic(look_up, args=(0,))
    if compare.timed:
        figures.put(
            "cluster",
            carrier.name,
            "save",
            added=median(pairs) - 1.0,
            lookup_ms=median(without) * 1e3,
            lookup_beside_save_ms=median(during) * 1e3,
            saves=len(pairs),
            lookups_beside=len(during),
            **about(shape),
        )
