"""How fast rows are compared with the copy of what was last saved, against reading as many bytes."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter
from typing import Literal

import numpy as np
import pytest
import torch
from cores import CORES
from figures import Figures
from harness import Compare
from torch import nn

from cpr_native.attachment import Attachment, attach

Metric = Literal["l2", "l1", "tv"]
# Rows and numbers of each; a table for the checks of the answers, one for the timing.
SHAPES = {
    "10M x 32": ((1000, 32), (10_000_000, 32)),
    "1M x 128": ((500, 128), (1_000_000, 128)),
    "1 x 64M": ((1, 100_000), (1, 64 << 20)),
}
ROUNDS = 7
# Longer rows are read twice for their total variation: first for their sums.
SEGMENT = 1 << 14
_MEMCHR = ctypes.CDLL(None).memchr
_MEMCHR.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_MEMCHR.restype = ctypes.c_void_p


def attached(rows: int, dim: int) -> tuple[nn.Module, Attachment]:
    """A parameter [rows, dim] from 0 to 1, and the copy of it that it has moved away from."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.rand(rows, dim))
    attachment = attach(model, blocks="rows", optimizer=())
    attachment.keep_saved()
    with torch.no_grad():
        model.weight.mul_(0.75).add_(0.125)
    return model, attachment


def reads(
    data: np.ndarray[tuple[int], np.dtype[np.uint8]], pool: ThreadPoolExecutor
) -> list[Callable[[], object]]:
    """The ways to read all of `data`, bytes of 1, with all cores, of which the fastest is the yardstick."""
    floats = torch.from_numpy(data.view(np.float32))
    parts = np.array_split(data, CORES)

    def memchr() -> None:
        for found in [pool.submit(_MEMCHR, part.ctypes.data, 0, part.nbytes) for part in parts]:
            assert found.result() is None

    def numpy_max() -> None:
        for found in [pool.submit(np.max, part) for part in parts]:
            assert found.result() == 1

    return [memchr, numpy_max, floats.sum, floats.max]


def fastest(ways: list[Callable[[], object]]) -> Callable[[], object]:
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


@pytest.mark.parametrize("metric", ["l2", "l1", "tv"])
@pytest.mark.parametrize("shape", SHAPES)
def test_changes_against_reading(compare: Compare, figures: Figures, shape: str, metric: Metric) -> None:
    rows, dim = SHAPES[shape][compare.timed]
    model, attachment = attached(rows, dim)
    weight = model.get_parameter("weight").detach()
    sample = slice(None, None, max(1, rows // 1000))
    assert torch.allclose(
        torch.from_numpy(attachment.changes("weight", metric)[sample]).double(),
        expected(weight[sample], metric),
        rtol=1e-3,
    )
    data = np.full(2 * weight.nbytes, 1, np.uint8)
    passes = 2 if metric == "tv" and dim > SEGMENT else 1
    with ThreadPoolExecutor(CORES) as pool:
        read = fastest(reads(data, pool))

        def read_all(_: None) -> None:
            for _ in range(passes):
                read()

        times = compare(
            lambda _: attachment.changes("weight", metric),
            read_all,
            itertools.repeat(None),
            rounds=ROUNDS,
            group=f"changes, {shape}, {metric}",
        )
    if compare.timed:
        rate = passes * data.nbytes / times.ours_ms / 1e6
        figures.put("snapshot", "changes", shape, metric, vs_read=times.ratio, gb_per_s=rate)
        of_l2 = [
            entry["l2"]["vs_read"] for entry in figures.get("snapshot", "changes").values() if "l2" in entry
        ]
        if of_l2:
            figures.put("snapshot", changes_vs_read=min(of_l2))
