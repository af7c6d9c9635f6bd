"""`EmbeddingBag` and `Embedding` with their table on a device: the bits of the same modules on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from device_memory import place_for_test
from device_twins import FUSED, assert_bits, assert_same
from torch import Tensor

from cpr_native import SGD, Adam, Embedding, EmbeddingBag, RowWiseAdagrad
from cpr_native.device import Place

ROWS, DIM = 20, 6


def pair(kind: Any, place: Place, **options: Any) -> tuple[Any, Any]:
    """The module on the device and on the CPU, around the same rows."""
    rows = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(3))
    rows = rows.to(options.pop("dtype", torch.float32))
    return (
        kind(ROWS, DIM, device=place, _weight=rows.to(place.torch_device, copy=True), **options),
        kind(ROWS, DIM, _weight=rows.clone(), **options),
    )


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids [30], offsets [5], per-sample weights [30] and the gradient [5, DIM]."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.randint(0, 31, (4,), generator=generator).sort()[0]]
    )
    return (
        torch.randint(0, ROWS, (30,), generator=generator),
        offsets,
        torch.randn(30, generator=generator),
        torch.randn(5, DIM, generator=generator),
    )


def train_bag(module: EmbeddingBag, seed: int, *, weighted: bool = False) -> tuple[Tensor, Tensor | None]:
    """One step; the output, and the gradient of the per-sample weights."""
    ids, offsets, weights, grad = (x.to(module.weight.device) for x in inputs(seed))
    weights = weights.to(module.weight.dtype).requires_grad_() if weighted else None
    out = module(ids, offsets, weights)
    out.backward(grad.to(out.dtype))
    return out, None if weights is None else weights.grad


@pytest.mark.parametrize("padding_idx", [None, 4])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_every_mode(mode: str, padding_idx: int | None) -> None:
    for optimizer in FUSED:
        module, twin = pair(
            EmbeddingBag, place_for_test(), mode=mode, padding_idx=padding_idx, optimizer=optimizer
        )
        for seed in range(3):
            assert_bits(train_bag(module, seed)[0], train_bag(twin, seed)[0])
        assert_same(module, twin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_half_precision(dtype: torch.dtype) -> None:
    for optimizer in (*FUSED, None):
        module, twin = pair(EmbeddingBag, place_for_test(), mode="sum", optimizer=optimizer, dtype=dtype)
        for seed in range(3):
            assert_bits(train_bag(module, seed)[0], train_bag(twin, seed)[0])
        assert module.weight.dtype == dtype
        assert_same(module, twin)


@pytest.mark.parametrize("padding_idx", [None, 4])
def test_per_sample_weights_with_padding(padding_idx: int | None) -> None:
    place = place_for_test()
    module, twin = pair(EmbeddingBag, place, mode="sum", padding_idx=padding_idx, optimizer=SGD(lr=0.1))
    for seed in range(3):
        out, grad = train_bag(module, seed, weighted=True)
        expected, expected_grad = train_bag(twin, seed, weighted=True)
        assert_bits(out, expected)
        assert grad is not None
        assert expected_grad is not None
        assert grad.device == place.torch_device
        assert_bits(grad, expected_grad)
    assert_same(module, twin)


@pytest.mark.parametrize("columns", [0, 3])
def test_inputs_of_two_dimensions(columns: int) -> None:
    module, twin = pair(EmbeddingBag, place_for_test(), mode="mean", optimizer=Adam(lr=0.1))
    for each in (module, twin):
        ids = torch.arange(4 * columns).reshape(4, columns).to(each.weight.device) % ROWS
        each(ids).sum().backward()
    assert_same(module, twin)


def test_the_last_offset_may_be_included() -> None:
    module, twin = pair(EmbeddingBag, place_for_test(), include_last_offset=True, optimizer=SGD(lr=0.1))
    outs = []
    for each in (module, twin):
        ids, offsets, _, _ = (x.to(each.weight.device) for x in inputs(1))
        outs.append(each(ids, torch.cat([offsets, offsets.new_full((1,), 30)])))
    assert_bits(*outs)


@pytest.mark.parametrize(("sparse", "by_freq"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("kind", [EmbeddingBag, Embedding])
def test_gradients_for_the_optimizers_of_torch(kind: Any, sparse: bool, by_freq: bool) -> None:
    place = place_for_test()
    module, twin = pair(kind, place, sparse=sparse, scale_grad_by_freq=by_freq, padding_idx=2)
    for each in (module, twin):
        ids = inputs(1)[0].to(each.weight.device).reshape(5, 6)
        (each(ids) ** 2).sum().backward()
    assert module.weight.grad.device == place.torch_device
    assert module.weight.grad.is_sparse is sparse
    assert_bits(module.weight.grad.to_dense(), twin.weight.grad.to_dense())
    assert module.engine.trackers(0).tolist() == twin.engine.trackers(0).tolist()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("kind", [EmbeddingBag, Embedding])
def test_max_norm_scales_rows_down(kind: Any, norm_type: float) -> None:
    module, twin = pair(
        kind,
        place_for_test(),
        max_norm=0.7,
        norm_type=norm_type,
        padding_idx=3,
        optimizer=RowWiseAdagrad(lr=0.1),
    )
    for seed in range(2):
        outs = []
        for each in (module, twin):
            ids = inputs(seed)[0].to(each.weight.device).reshape(5, 6)
            outs.append(each(ids))
            outs[-1].sum().backward()
            with torch.no_grad():
                each(ids.new_full((1, 1), 3))
        assert_bits(*outs)
    assert_same(module, twin)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_max_norm_of_half_precision(dtype: torch.dtype) -> None:
    module, twin = pair(EmbeddingBag, place_for_test(), max_norm=0.7, mode="sum", dtype=dtype)
    for each in (module, twin):
        with torch.no_grad():
            each(inputs(1)[0].to(each.weight.device).reshape(5, 6))
    assert_same(module, twin)


def test_max_norm_says_what_it_cannot_do() -> None:
    place = place_for_test()
    module = EmbeddingBag(ROWS, DIM, max_norm=0.7, norm_type=3.0, device=place)
    with pytest.raises(ValueError, match="norm_type"):
        module(torch.tensor([[1]], device=place.torch_device))
    module, twin = pair(EmbeddingBag, place, max_norm=0.7)
    twin.engine.mark_dirty(0)
    with pytest.raises(IndexError, match="got id 20 at position 1"):
        module(torch.tensor([[1, ROWS]], device=place.torch_device))
    assert_same(module, twin)


@pytest.mark.parametrize("padding_idx", [None, 4])
def test_rows_of_an_embedding(padding_idx: int | None) -> None:
    for optimizer in FUSED:
        module, twin = pair(Embedding, place_for_test(), padding_idx=padding_idx, optimizer=optimizer)
        for seed in range(3):
            outs = []
            for each in (module, twin):
                ids = inputs(seed)[0].to(each.weight.device).reshape(2, 5, 3)
                outs.append(each(ids))
                (outs[-1] * torch.arange(DIM, device=each.weight.device)).sum().backward()
            assert outs[0].shape == (2, 5, 3, DIM)
            assert_bits(*outs)
        assert_same(module, twin)


def test_new_weights_are_drawn_as_torch_draws_them() -> None:
    place = place_for_test()
    torch.manual_seed(11)
    module = EmbeddingBag(ROWS, DIM, padding_idx=1, device=place)
    torch.manual_seed(11)
    expected = torch.nn.EmbeddingBag(ROWS, DIM, padding_idx=1, device=place.torch_device)
    assert module.weight.device == place.torch_device
    assert_bits(module.weight, expected.weight)
    assert module.engine.dirty(0).all()
    before = module.weight.detach().clone()
    module.reset_parameters()
    assert not torch.equal(module.weight, before)
    assert not module.weight[1].any()


@pytest.mark.parametrize("kind", [EmbeddingBag, Embedding])
def test_pretrained_rows_become_the_parameter(kind: Any) -> None:
    place = place_for_test()
    rows = torch.randn(ROWS, DIM, device=place.torch_device)
    module = kind.from_pretrained(rows, device=place)
    assert module.weight.data_ptr() == rows.data_ptr() == module.engine.weight(0).data_ptr()
    assert not module.weight.requires_grad
    assert_bits(module(torch.tensor([[3], [5]], device=place.torch_device)).reshape(2, DIM), rows[[3, 5]])


def test_bad_ids_of_a_padded_table_are_found_at_once() -> None:
    """The host looks at the ids there."""
    place = place_for_test()
    module = EmbeddingBag(ROWS, DIM, padding_idx=1, device=place, optimizer=SGD(lr=0.1))
    with pytest.raises(IndexError, match="id 20 at position 1 is out of range for 20 rows"):
        module(torch.tensor([[1, ROWS]], device=place.torch_device))
    with pytest.raises(ValueError, match=r"offsets\[1\]"):
        module(
            torch.tensor([1, 2], device=place.torch_device), torch.tensor([0, -1], device=place.torch_device)
        )


def test_copies_are_independent() -> None:
    module, twin = pair(EmbeddingBag, place_for_test(), optimizer=Adam(lr=0.1))
    train_bag(module, 1)
    train_bag(twin, 1)
    other = copy.deepcopy(module)
    train_bag(other, 2)
    assert_same(module, twin)
    train_bag(twin, 2)
    assert_same(other, twin)
