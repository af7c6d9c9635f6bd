"""The lookup alone, as in evaluation: against FBGEMM's CPU TBE and torch.nn.EmbeddingBag."""

from __future__ import annotations

import pytest
import torch
from harness import BATCHES, ROUNDS, Compare, shape_of
from sides import Fbgemm, Ours, Side, TorchBags, copy_weights


def check_and_compare(compare: Compare, name: str, yardstick: Side, ours: Ours) -> None:
    shape = shape_of(name, compare.timed)
    batches = shape.batches(BATCHES)
    copy_weights(ours, yardstick)
    for ids in batches[:3]:
        torch.testing.assert_close(ours.forward(ids), yardstick.forward(ids))
    compare(ours.forward, yardstick.forward, batches, rounds=2 * ROUNDS, group=f"forward {name}")


@pytest.mark.parametrize("name", ["cached", "main", "large"])
def test_forward_against_fbgemm(compare: Compare, name: str) -> None:
    shape = shape_of(name, compare.timed)
    yardstick = Fbgemm(shape, "sgd")
    check_and_compare(compare, name, yardstick, Ours(shape, "sgd"))


@pytest.mark.parametrize("name", ["cached", "main"])
def test_forward_against_torch(compare: Compare, name: str) -> None:
    shape = shape_of(name, compare.timed)
    check_and_compare(compare, name, TorchBags(shape, torch.optim.SGD), Ours(shape, "sgd"))
