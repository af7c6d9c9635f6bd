"""Steps of `ShardedEmbeddingBagCollection` that are not like the others: empty, refused, lost."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded.sharded_jobs import (
    BATCH,
    bags_of,
    check_same,
    gradient_for,
    local_of,
    settle,
    sharded_of,
    shards_of,
    spec_of,
    step,
    tables_of,
)

from cpr_native.cluster.client import ShardLoss
from cpr_native.config import EmbeddingConfig


def test_two_forwards_before_their_backwards(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for module in (sharded, local):
            outs = [module(b.ids, b.offsets) for b in (bags_of(tables, 0), bags_of(tables, 1))]
            for seed, out in enumerate(outs):
                out.backward(gradient_for(out, seed))
        settle(sharded)
        check_same(directory, local)
        assert sharded.clients.step == 3


def test_steps_without_ids_and_without_a_batch(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for seed, batch in enumerate((BATCH, 0, BATCH)):
            bags = bags_of(tables, seed, batch=batch)
            assert torch.equal(step(sharded, bags, seed), step(local, bags, seed))
        sharded.empty_step()
        settle(sharded)
        check_same(directory, local)
        assert sharded.clients.step == 5


def test_a_gradient_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for seed in range(3):
            bags = bags_of(tables, seed)
            for module in (sharded, local):
                out = module(bags.ids, bags.offsets)
                grad = gradient_for(out, seed)
                if seed == 1:
                    grad[2, 3] = float("nan")
                out.backward(grad)
        assert sharded.skipped_steps == local.skipped_steps == 1
        settle(sharded)
        check_same(directory, local)


def test_a_second_backward_raises(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    bags = bags_of(tables, 0)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        out = sharded(bags.ids, bags.offsets)
        out.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="second backward through one lookup"):
            out.sum().backward()
        with pytest.raises(RuntimeError, match="no second derivative"):
            sharded(bags.ids, bags.offsets).sum().backward(create_graph=True)
        assert sharded.clients.step == 2


def test_bad_batches_are_named_as_by_the_local_collection(tmp_path: Path) -> None:
    tables = tables_of("MEAN", "SUM", "SUM")
    spec = spec_of(tmp_path, tables)
    local = local_of(spec)
    good = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 3, 4])
    cases: list[tuple[Any, ...]] = [
        (torch.tensor([0, 61, 1, 2]), good[1]),
        (torch.tensor([0, 1, 1, -1]), good[1]),
        (good[0], torch.tensor([0, 1, 2, 4, 3])),
        (good[0], torch.tensor([0, 1, 2])),
        (good[0].float(), good[1]),
        (good[0].reshape(2, 2), good[1]),
        (good[0], [0, 1, 2, 3, 4]),
        (*good, torch.ones(4)),
        (*good, torch.ones(3)),
    ]
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        for case in cases:
            with pytest.raises((IndexError, TypeError, ValueError)) as expected:
                local(*case)
            with pytest.raises(expected.type) as error:
                sharded(*case)
            assert str(error.value) == str(expected.value)
            if len(case) == 2:
                with pytest.raises(expected.type):
                    sharded.prefetch(*case)
        assert sharded.clients.step == 1
        assert sharded._ahead is None


def test_a_shard_that_dies_between_forward_and_backward(tmp_path: Path) -> None:
    """Nothing was saved, so its rows begin anew; all others are those of the local collection."""
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    local, late = local_of(spec), local_of(spec)
    losses: list[ShardLoss] = []
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec, on_lost=losses.append)
        for seed in range(4):
            bags = bags_of(tables, seed)
            out = sharded(bags.ids, bags.offsets)
            if seed == 2:
                settle(sharded)
                ahead = bags_of(tables, 3)
                sharded.prefetch(ahead.ids, ahead.offsets)
                directory.kill(1)
            grad = torch.ones_like(out)  # of no row, so that shards don't see each other
            out.backward(grad)
            for module in (local, late) if seed >= 2 else (local,):
                module(bags.ids, bags.offsets).backward(grad)
        settle(sharded)
        (loss,) = losses
        assert (loss.shard, loss.lost_steps) == (1, 2)
        for number, table in enumerate(tables):
            begin, end = spec.row_range(table.name, 1)
            shown = local.engine.weight(number)
            shown[begin:end] = late.engine.weight(number)[begin:end]
            whole = torch.from_numpy(shown)
            parts = [directory.handle(s).call("rows", table.name).result(9)["weight"] for s in range(3)
                     if spec.row_range(table.name, s)[0] < spec.row_range(table.name, s)[1]]  # fmt: skip
            assert torch.equal(torch.cat([torch.from_numpy(part) for part in parts]), whole)


def test_a_backward_of_an_older_generation_is_refused(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    bags = bags_of(tables, 0)
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        out = sharded(bags.ids, bags.offsets)
        sharded.prefetch(bags.ids, bags.offsets)
        for shard in range(3):
            handle = directory.handle(shard)
            handle.call("begin_generation", 2, handle.incarnation, 0, 1).result(9)
        sharded.clients.begin(2, 0)
        with pytest.raises(RuntimeError, match="of generation 1, now is 2"):
            out.sum().backward()
        step(sharded, bags, 0)
        settle(sharded)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    tables = tables_of()
    spec = spec_of(tmp_path, tables)
    rows = EmbeddingConfig(name="rows", num_embeddings=9, embedding_dim=8, feature_names=["f"])
    unpooled = spec_of(tmp_path, [rows])
    with shards_of(spec) as directory:
        sharded = sharded_of(directory, spec)
        with pytest.raises(ValueError, match="expected 2 shards, got 3"):
            sharded_of(directory, spec_of(tmp_path, tables, shards=2))
        with pytest.raises(TypeError, match="expected tables with pooling"):
            sharded_of(directory, unpooled)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="a copy would send the steps"):
                copied(sharded)
