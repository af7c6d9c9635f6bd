"""Failures that peers have, which the modules must not have."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from cpr_native import SGD, Embedding, EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig, Trackers
from cpr_native._native import Selection, Snapshot

ROWS = 10


def collection(**options: Any) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=3, feature_names=[name])
        for name in "ab"
    ]
    return EmbeddingBagCollection(tables, **{"optimizer": SGD(lr=0.1), **options})


def test_v1_empty_offsets_raise_instead_of_a_segfault() -> None:
    code = (
        "import torch, cpr_native\n"
        "bag = cpr_native.EmbeddingBag(10, 3, mode='sum')\n"
        "bag(torch.tensor([1, 2]), torch.zeros(0, dtype=torch.int64))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert "ValueError: offsets" in result.stderr


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_v2_last_offset_below_the_number_of_ids_raises(dtype: torch.dtype, sparse: bool) -> None:
    bag = EmbeddingBag(ROWS, 3, mode="sum", include_last_offset=True, sparse=sparse, dtype=dtype)
    with pytest.raises(ValueError, match="number of ids 4, got 3"):
        bag(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 3]))
    assert not bag.engine.counts(0).any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_v3_unsorted_offsets_raise(mode: str, dtype: torch.dtype) -> None:
    bag = EmbeddingBag(ROWS, 3, mode=mode)
    with pytest.raises(ValueError, match="offsets"):
        bag(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3, 1], dtype=dtype))


def rows_of(snapshot: Snapshot) -> dict[int, np.ndarray]:
    """The rows of table 0 in a snapshot, which is then committed."""
    with snapshot:
        rows = {}
        for chunk in snapshot:
            rows.update(zip(chunk.rows.tolist(), chunk.weight.copy(), strict=True))
            chunk.close()
        snapshot.commit()
    return rows


def test_v4_rows_that_max_norm_changed_are_in_the_next_delta() -> None:
    torch.manual_seed(0)
    bag = EmbeddingBag(ROWS, 3, max_norm=0.5, optimizer=SGD(lr=0.1))
    base = rows_of(bag.engine.begin([Selection.all()], clears_dirty=True))
    with torch.no_grad():
        bag.eval()(torch.tensor([[1, 2, 2]]))
    delta = rows_of(bag.engine.begin([Selection.dirty()], clears_dirty=True))
    assert sorted(delta) == [1, 2]
    restored = np.stack([{**base, **delta}[row] for row in range(ROWS)])
    np.testing.assert_array_equal(restored, bag.weight.detach().numpy())


@pytest.mark.parametrize("bad", [None, ROWS, -1])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), None])
def test_v5_inputs_are_never_written(optimizer: SGD | None, bad: int | None) -> None:
    ids = torch.tensor([1, 2, 2, 9 if bad is None else bad])
    offsets, weights = torch.tensor([0, 1, 2, 3, 4]), torch.rand(4)
    given = [ids, offsets, weights]
    before = [tensor.clone() for tensor in given]
    calls = [
        lambda: collection(optimizer=optimizer)(ids, offsets, weights),
        lambda: EmbeddingBag(ROWS, 3, mode="sum", optimizer=optimizer)(ids, offsets[:-1], weights),
        lambda: EmbeddingBag(ROWS, 3, mode="sum", optimizer=optimizer, padding_idx=2)(ids, offsets[:-1]),
        lambda: Embedding(ROWS, 3, optimizer=optimizer)(ids),
    ]
    for call in calls:
        if bad is None:
            out = call()
            grad = torch.rand(out.shape)
            kept = grad.clone()
            out.backward(grad)
            assert torch.equal(grad, kept)
        else:
            with pytest.raises(IndexError):
                call()
        for tensor, copy in zip(given, before, strict=True):
            assert torch.equal(tensor, copy)


def test_v6_counter_passes_2_to_24_and_saturates() -> None:
    bag = EmbeddingBag(2, 1, mode="sum", optimizer=SGD(lr=0.0))
    maximum = 2**27 - 1
    for start, expected in ((2**24, 2**24 + 5), (maximum - 7, maximum - 2), (maximum - 2, maximum)):
        words = np.array([start, 0], dtype=np.uint32)
        bag.engine.set_trackers(0, (words.ctypes.data, words.shape, "uint32"))
        bag(torch.zeros(1, 5, dtype=torch.int64)).sum().backward()
        assert bag.engine.counts(0).tolist() == [expected, 0]
        assert bag.engine.dirty(0).tolist() == [True, False]


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), None])
def test_v8_eval_and_no_grad_leave_every_tracker_alone(optimizer: SGD | None) -> None:
    module = collection(optimizer=optimizer)
    ids, offsets = torch.tensor([1, 2, 2, 9]), torch.tensor([0, 1, 2, 3, 4])
    before = [module.engine.trackers(table) for table in range(2)]
    with torch.no_grad():
        module(ids, offsets)
    with torch.inference_mode():
        module(ids, offsets)
    out = module.eval()(ids, offsets)
    assert out.requires_grad == (optimizer is None)
    for table in range(2):
        np.testing.assert_array_equal(module.engine.trackers(table), before[table])
        assert len(module.engine.sampled_rows(table)) == 0
    assert module.engine.step == 0


def test_v8_forward_without_backward_is_not_tracked() -> None:
    module = collection()
    module(torch.tensor([1, 2, 2, 9]), torch.tensor([0, 1, 2, 3, 4]))
    assert not module.engine.trackers(0).any()


def test_v9_memory_of_the_trackers_is_constant() -> None:
    trackers = Trackers(drift=True, ssu_fraction=0.5)
    module = EmbeddingBag(1000, 2, mode="sum", optimizer=SGD(lr=0.01), trackers=trackers)
    before = module.engine.memory()
    generator = torch.Generator().manual_seed(0)
    batches = torch.randint(0, 1000, (10_000, 4, 2), generator=generator)
    for ids in batches:
        module(ids).sum().backward()
    assert module.engine.step == 10_000
    assert module.engine.memory() == before
    assert before["metadata"] == 16 * 1000
    assert before["ssu"] <= 4 * 512
    assert 0 < len(module.engine.sampled_rows(0)) <= 500


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), None])
def test_v27_empty_batch_is_a_no_op(optimizer: SGD | None) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    modules_and_inputs: list[tuple[Any, tuple[torch.Tensor, ...]]] = [
        (collection(optimizer=optimizer), (empty, torch.tensor([0]))),
        (collection(optimizer=optimizer), (empty, torch.zeros(5, dtype=torch.int64))),
        (EmbeddingBag(ROWS, 3, optimizer=optimizer), (empty, empty)),
        (EmbeddingBag(ROWS, 3, optimizer=optimizer), (torch.zeros(0, 4, dtype=torch.int64),)),
        (Embedding(ROWS, 3, optimizer=optimizer), (torch.zeros(3, 0, dtype=torch.int64),)),
    ]
    for module, inputs in modules_and_inputs:
        before = [weight.detach().clone() for weight in module.parameters()]
        words = module.engine.trackers(0)
        module(*inputs).sum().backward()
        for weight, kept in zip(module.parameters(), before, strict=True):
            assert torch.equal(weight, kept)
        np.testing.assert_array_equal(module.engine.trackers(0), words)
