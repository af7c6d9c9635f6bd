"""One training step of the tables: lookup, backward, update.

Shapes: `cached` fits the second-level cache, `main` is a DLRM's, `large` is far beyond any cache and has bags
    of 10.
Yardsticks: torch.nn.EmbeddingBag(sparse=True) with SGD and with Adagrad, FBGEMM's CPU TBE with SGD and with
    row-wise
Adagrad; and this package itself without trackers.
"""

from __future__ import annotations

import pytest
import torch
from harness import BATCHES, ROUNDS, Compare, shape_of
from sides import NO_TRACKERS, Fbgemm, Ours, TorchBags, assert_same_training, copy_weights


@pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "sgd"])
@pytest.mark.parametrize("name", ["cached", "main", "large"])
def test_step_against_fbgemm(compare: Compare, name: str, optimizer: str) -> None:
    shape = shape_of(name, compare.timed)
    yardstick = Fbgemm(shape, optimizer)
    ours = Ours(shape, optimizer)
    batches = shape.batches(BATCHES)
    assert_same_training(ours, yardstick, batches[:3])
    compare(ours.step, yardstick.step, batches, rounds=ROUNDS, group=f"step {name}")


@pytest.mark.parametrize("name", ["cached", "main"])
def test_step_against_torch_sgd(compare: Compare, name: str) -> None:
    shape = shape_of(name, compare.timed)
    ours, yardstick = Ours(shape, "sgd"), TorchBags(shape, torch.optim.SGD)
    batches = shape.batches(BATCHES)
    assert_same_training(ours, yardstick, batches[:3])
    compare(ours.step, yardstick.step, batches, rounds=ROUNDS, group=f"step {name}")


@pytest.mark.parametrize("name", ["cached", "main"])
def test_step_against_torch_adagrad(compare: Compare, name: str) -> None:
    """Torch's Adagrad has an accumulator an element, ours one a row: the first step goes the same way."""
    shape = shape_of(name, compare.timed)
    ours, yardstick = Ours(shape, "row_wise_adagrad"), TorchBags(shape, torch.optim.Adagrad)
    batches = shape.batches(BATCHES)
    copy_weights(ours, yardstick)
    before = [weight.clone() for weight in ours.weights()]
    torch.testing.assert_close(ours.step(batches[0]), yardstick.step(batches[0]))
    for mine, other, old in zip(ours.weights(), yardstick.weights(), before, strict=True):
        assert torch.equal((mine != old).any(dim=1), (other != old).any(dim=1))
        moved = (mine != old) & (other != old)
        assert torch.equal(torch.sign(mine - old)[moved], torch.sign(other - old)[moved])
        assert moved.any()
    compare(ours.step, yardstick.step, batches, rounds=ROUNDS // 3, group=f"step {name}")


@pytest.mark.parametrize("name", ["cached", "main", "large"])
def test_step_with_trackers_against_without(compare: Compare, name: str) -> None:
    """A ratio of 0.95 means that tracking costs 5 %."""
    shape = shape_of(name, compare.timed)
    ours, yardstick = Ours(shape, "row_wise_adagrad"), Ours(shape, "row_wise_adagrad", NO_TRACKERS)
    batches = shape.batches(BATCHES)
    for ids in batches[:3]:
        assert torch.equal(ours.step(ids), yardstick.step(ids))
    for mine, other in zip(ours.weights(), yardstick.weights(), strict=True):
        assert torch.equal(mine, other)
    touched = torch.cat([ids.view(shape.tables, -1)[0] for ids in batches[:3]])
    counts = torch.bincount(touched, minlength=shape.rows)
    assert torch.equal(torch.from_numpy(ours.module.engine.counts(0).astype("int64")), counts)
    assert torch.equal(torch.from_numpy(ours.module.engine.dirty(0)), counts > 0)
    compare(ours.step, yardstick.step, batches, rounds=3 * ROUNDS, group=f"step {name}")
