"""How fast rows are compared with the copy of what was last saved, against only reading the same memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
import pytest
import torch
from cores import CORES
from figures import Figures
from harness import Compare
from numpy.typing import NDArray
from torch import nn

from cpr_native.attachment import Attachment, attach

Array = NDArray[Any]
Metric = Literal["l2", "l1", "tv"]
Memory = Literal["huge pages", "torch's pages"]
# Rows and numbers of each; for the checks of the answers, and for the timing.
SHAPES = {
    "10M x 32": ((1000, 32), (10_000_000, 32)),
    "1M x 128": ((500, 128), (1_000_000, 128)),
    "1 x 64M": ((1, 100_000), (1, 64 << 20)),
}
CASES: list[tuple[Memory, Metric]] = [
    ("huge pages", "l2"),
    ("huge pages", "l1"),
    ("huge pages", "tv"),
    ("torch's pages", "l2"),
]
ROUNDS = 7
# Longer rows are read twice for their total variation: first for their sums.
SEGMENT = 1 << 14


def attached(rows: int, dim: int, memory: Memory) -> tuple[nn.Module, Attachment]:
    """A parameter [rows, dim] from 0 to 1, and the copy of it that it has moved away from.

    NumPy asks for huge pages, torch for none; where the system gives them to nobody or to all it is the same.
    """
    weight = (
        torch.from_numpy(np.empty((rows, dim), np.float32))
        if memory == "huge pages"
        else torch.empty(rows, dim)
    )
    model = nn.Module()
    model.weight = nn.Parameter(weight.uniform_())
    attachment = attach(model, blocks="rows", optimizer=())
    attachment.keep_saved()
    with torch.no_grad():
        model.weight.mul_(0.75).add_(0.125)
    return model, attachment


def reads(arrays: Sequence[Array], pool: ThreadPoolExecutor) -> list[Callable[[], object]]:
    """The ways to read all of `arrays` with all cores, of which the fastest is the yardstick."""
    tensors = [torch.from_numpy(array).view(-1) for array in arrays]
    parts = [part for array in arrays for part in np.array_split(array.reshape(-1).view(np.uint8), CORES)]

    def numpy_max() -> None:
        for largest in [pool.submit(np.max, part) for part in parts]:
            largest.result()

    return [
        numpy_max,
        lambda: [tensor.sum() for tensor in tensors],
        lambda: [tensor.max() for tensor in tensors],
    ]


def fastest(ways: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """The one with the least median of five calls."""

    def seconds(call: Callable[[], object]) -> float:
        begin = perf_counter()
        call()
        return perf_counter() - begin

    return min(ways, key=lambda way: median(seconds(way) for _ in range(5)))


def expected(now: torch.Tensor, metric: Metric) -> torch.Tensor:
    then = (now - 0.125) / 0.75
    if metric == "tv":
        now, then = (rows / rows.sum(dim=1, keepdim=True) for rows in (now, then))
    found = torch.linalg.vector_norm((now - then).double(), ord=2 if metric == "l2" else 1, dim=1)
    return found * (0.5 if metric == "tv" else 1.0)


@pytest.mark.parametrize(("memory", "metric"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
def test_changes_against_reading(
    compare: Compare, figures: Figures, shape: str, memory: Memory, metric: Metric
) -> None:
    rows, dim = SHAPES[shape][compare.timed]
    model, attachment = attached(rows, dim, memory)
    weight = model.get_parameter("weight").detach()
    sample = slice(None, None, max(1, rows // 1000))
    assert torch.allclose(
        torch.from_numpy(attachment.changes("weight", metric)[sample]).double(),
        expected(weight[sample], metric),
        rtol=1e-3,
    )
    arrays = [weight.numpy(), weight.numpy().copy()]  # the engine's copy has huge pages too
    passes = 2 if metric == "tv" and dim > SEGMENT else 1
    with ThreadPoolExecutor(CORES) as pool:
        read = fastest(reads(arrays, pool))

        def read_all(_: None) -> None:
            for _ in range(passes):
                read()

        times = compare(
            lambda _: attachment.changes("weight", metric),
            read_all,
            itertools.repeat(None),
            rounds=ROUNDS,
            group=f"changes, {shape}, {memory}, {metric}",
        )
    if compare.timed:
        size = passes * 2 * arrays[0].nbytes
        rate, read_rate = (size / ms / 1e6 for ms in (times.ours_ms, times.yardstick_ms))
        place = ("snapshot", "changes", f"{shape}, {memory}", metric)
        figures.put(*place, vs_read=times.ratio, gb_per_s=rate, read_gb_per_s=read_rate)
        entries = figures.get("snapshot", "changes").values()
        of_l2 = [entry["l2"]["vs_read"] for entry in entries if "l2" in entry]
        if of_l2:
            figures.put("snapshot", changes_vs_read=min(of_l2))
