"""S1, S3, S4 and S5 against torch's `EmbeddingBag(sparse=True)` with Adagrad.

S2 and torch's state, an accumulator for every element, don't fit into the memory of the machine together.
"""

from __future__ import annotations

import pytest
from figures import Figures
from harness import Compare
from shapes import shape_of
from sides import Ours, TorchBags, assert_same_training

ROUNDS = 12


@pytest.mark.parametrize("name", ["S1", "S3", "S4", "S5"])
def test_step_against_torch_adagrad(compare: Compare, figures: Figures, name: str) -> None:
    """Torch's Adagrad has an accumulator an element, ours one a row: on even gradients both give the same."""
    shape = shape_of(name, compare.timed)
    ours = Ours(shape)
    yardstick = TorchBags(shape, ours.weights())
    batches = shape.batches(3 + compare.inputs(ROUNDS))
    ours.gradient = yardstick.gradient = shape.even_gradient()
    assert_same_training(ours, yardstick, batches[:3])
    ours.gradient = yardstick.gradient = shape.gradient()
    times = compare(ours.step, yardstick.step, iter(batches[3:]), rounds=ROUNDS, group=f"{name} step, torch")
    if compare.timed:
        figures.put("engine", name, vs_torch_adagrad=times.ratio, torch_adagrad_step_ms=times.yardstick_ms)
