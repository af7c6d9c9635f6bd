"""`ShardedEmbeddingBagCollection` with one trainer: to the bits of the local collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sharded.sharded_jobs import (
    Bags,
    bags_of,
    check_same,
    gradient_for,
    local_of,
    optimizers,
    settle,
    sharded_of,
    shards_of,
    spec_of,
    step,
    tables_of,
)

from cpr_native.config import DataType
from cpr_native.store import Placement


@pytest.mark.parametrize("kind", list(optimizers()))
@pytest.mark.parametrize("poolings", [("SUM",) * 3, ("MEAN", "SUM", "MAX")], ids="-".join)
def test_outputs_rows_state_counts_and_dirty_bits(tmp_path: Path, kind: str, poolings: Any) -> None:
    tables = tables_of(*poolings)
    spec = spec_of(tmp_path, tables, optimizer=optimizers()[kind])
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for seed in range(5):
            bags = bags_of(tables, seed, longest=70 if seed == 3 else 3)
            weighted = poolings == ("SUM",) * 3 and seed % 2 == 1
            ours, theirs = (step(m, bags, seed, weighted=weighted) for m in (sharded, local))
            assert torch.equal(ours, theirs)
        settle(sharded)
        check_same(directory, local)
        assert sharded.clients.step == 6


@pytest.mark.parametrize("data_type", [DataType.FP16, DataType.BF16])
def test_rows_of_half_precision(tmp_path: Path, data_type: DataType) -> None:
    """Their rounding is a hash of the global row, so it is the same in a shard."""
    tables = tables_of(data_type=data_type)
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for seed in range(4):
            bags = bags_of(tables, seed)
            assert torch.equal(step(sharded, bags, seed), step(local, bags, seed))
        settle(sharded)
        check_same(directory, local)


@pytest.mark.parametrize(("strategy", "first"), [("table_wise", (3, 1, 0)), ("balanced_rows", (0, 2, 0))])
def test_other_placements(tmp_path: Path, strategy: str, first: tuple[int, int, int]) -> None:
    tables = tables_of()
    placement = Placement(
        shards=4, strategy=strategy, first=dict(zip(("users", "few", "items"), first, strict=True))
    )
    spec = spec_of(tmp_path, tables, placement=placement)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for seed in range(3):
            bags = bags_of(tables, seed)
            assert torch.equal(step(sharded, bags, seed), step(local, bags, seed))
        settle(sharded)
        check_same(directory, local)


@pytest.mark.parametrize("place", ["before backward", "after backward", "another batch", "not always"])
def test_prefetched_batches_change_nothing(tmp_path: Path, place: str) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    batches = [bags_of(tables, seed) for seed in range(6)]
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        sharded.prefetch(batches[0].ids, batches[0].offsets)
        for seed, bags in enumerate(batches):
            following = batches[(seed + (2 if place == "another batch" else 1)) % 6]
            ahead = sharded._ahead
            out = sharded(bags.ids, bags.offsets)
            hit = ahead is not None and sharded._ahead is None and ahead._lookups is None
            assert hit == ((place != "another batch" and ahead is not None) or seed == 0)
            if place != "after backward" and (place != "not always" or seed % 2):
                sharded.prefetch(following.ids, following.offsets)
            with torch.no_grad():
                sharded(batches[0].ids, batches[0].offsets)  # takes nothing of what is ahead
            out.backward(gradient_for(out, seed))
            if place == "after backward":
                sharded.prefetch(following.ids, following.offsets)
            assert torch.equal(out, step(local, bags, seed))
        settle(sharded)
        check_same(directory, local)


def test_a_prefetched_batch_whose_step_never_comes(tmp_path: Path) -> None:
    """The forward was dropped: what was asked for the step after it would never be answered."""
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    first, second = bags_of(tables, 0), bags_of(tables, 1)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        sharded(first.ids, first.offsets)
        sharded.prefetch(second.ids, second.offsets)
        assert torch.equal(step(sharded, second, 1), step(local, second, 1))
        settle(sharded)
        check_same(directory, local)


def test_the_caller_may_overwrite_its_ids(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        bags = bags_of(tables, 0)
        for module in (local, sharded):
            mine = Bags(bags.ids.clone(), bags.offsets.clone(), bags.weights.clone())
            out = module(mine.ids, mine.offsets, mine.weights)
            for tensor in (mine.ids, mine.offsets, mine.weights):
                tensor.zero_()
            out.backward(gradient_for(out, 0))
        settle(sharded)
        check_same(directory, local)


def test_gradients_of_per_sample_weights(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    bags = bags_of(tables, 0)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for training in (True, False):
            found = []
            for module in (sharded.train(training), local.train(training)):
                weights = bags.weights.clone().requires_grad_()
                out = module(bags.ids, bags.offsets, weights)
                out.backward(gradient_for(out, 0))
                found.append(weights.grad)
            assert torch.equal(found[0], found[1])
        settle(sharded)
        check_same(directory, local)
        assert sharded.clients.step == 2


def test_gradients_of_per_sample_weights_alone_are_no_step(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    bags = bags_of(tables, 0)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        found = []
        for module in (sharded, local):
            weights = bags.weights.clone().requires_grad_()
            out = module(bags.ids, bags.offsets, weights)
            found += torch.autograd.grad(out, weights, gradient_for(out, 0), retain_graph=True)
            if module is sharded:
                assert sharded.clients.step == 1
            out.backward(gradient_for(out, 0))
            assert torch.equal(found[-1], weights.grad)
        assert torch.equal(found[0], found[1])
        settle(sharded)
        check_same(directory, local)
        assert sharded.clients.step == 2


def test_nothing_is_sent_without_training(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    bags = bags_of(tables, 0)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        with torch.no_grad():
            assert torch.equal(sharded(bags.ids, bags.offsets), local(bags.ids, bags.offsets))
        out = sharded.eval()(bags.ids, bags.offsets)
        assert not out.requires_grad
        sharded.train()(bags.ids, bags.offsets)
        assert sharded.clients.step == 1
        check_same(directory, local)
        assert list(sharded.parameters()) == []
        assert sharded.state_dict() == {}


def test_schedules_and_scales(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables, optimizer=optimizers()["adam"])
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for module in (sharded, local):
            schedule = torch.optim.lr_scheduler.ExponentialLR(module.fused_optimizer, gamma=0.5)
            module.grad_scale = 0.37
            for seed in range(4):
                step(module, bags_of(tables, seed), seed)
                schedule.step()
                if seed == 1:
                    module.fused_optimizer.param_groups[0]["betas"] = (0.8, 0.9)
                if seed == 2:
                    module.learning_rate = 0.2
            with pytest.raises(ValueError, match="learning_rate"):
                module.learning_rate = -1.0
            with pytest.raises(ValueError, match="grad_scale"):
                module.grad_scale = 0.0
            assert module.learning_rate == pytest.approx(0.1)
        settle(sharded)
        check_same(directory, local)
