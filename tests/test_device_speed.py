"""The benchmark of the CUDA engine compares answers before it times: on a device that runs on the host."""

from __future__ import annotations

import pytest
import torch
from device_memory import ON_GPU, host_device
from device_speed import SHAPES, Shape, assert_answers, lookup_bytes, update_bytes

SMALL = Shape(tables=3, rows=50, dim=16, batch=16, pooling=5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_torchs(seed: int) -> None:
    assert_answers(SMALL, host_device(8, seed), "cuda" if ON_GPU else "cpu")


def test_bytes_are_those_that_must_move() -> None:
    assert lookup_bytes(SMALL) == 240 * (8 + 64) + 16 * 3 * 64
    ids = torch.arange(240) % 2  # two rows of each table
    keys = 240 * 8 * 2  # one pass: 150 rows in 8 bits
    assert update_bytes(SMALL, ids) == 16 * 3 * 64 + keys + 6 * 2 * (64 + 8)
    assert update_bytes(SHAPES["S1"], torch.zeros(SHAPES["S1"].ids, dtype=torch.int64)) > 0
