"""`Embedding` beside `torch.nn.Embedding`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cpr_native import SGD, Embedding

ROWS, DIM = 20, 3


def pair(**options: Any) -> tuple[nn.Embedding, Embedding]:
    torch.manual_seed(3)
    theirs = nn.Embedding(ROWS, DIM, **options)
    torch.manual_seed(3)
    return theirs, Embedding(ROWS, DIM, **options)


def run(module: nn.Embedding, ids: Tensor) -> tuple[Tensor, Tensor]:
    out = module(ids)
    out.backward(torch.arange(out.numel(), dtype=torch.float32).view(out.shape).cos())
    assert module.weight.grad is not None
    grad = module.weight.grad
    return out, grad.coalesce().to_dense() if module.sparse else grad


@pytest.mark.parametrize("padding_idx", [None, 4, -1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (2, 1, 4), (0,), (3, 0)])
def test_any_shape(shape: tuple[int, ...], sparse: bool, padding_idx: int | None) -> None:
    # Torch's own sparse backward fails for a 0-D input with padding_idx, so the yardstick is the dense one.
    theirs, _ = pair(padding_idx=padding_idx)
    _, ours = pair(padding_idx=padding_idx, sparse=sparse)
    assert torch.equal(theirs.weight, ours.weight)
    ids = torch.arange(torch.Size(shape).numel(), dtype=torch.int64).mul(4).remainder(ROWS).view(shape)
    torch.testing.assert_close(run(ours, ids), run(theirs, ids))


def test_representation_is_torchs() -> None:
    theirs, ours = pair(sparse=True, padding_idx=-2)
    assert repr(theirs) == repr(ours)


def test_strided_int32_input() -> None:
    theirs, ours = pair()
    ids = torch.randint(0, ROWS, (4, 6), dtype=torch.int32).t()
    torch.testing.assert_close(run(ours, ids), run(theirs, ids))


def test_padding_row_is_read_but_never_trained_or_tracked() -> None:
    embedding = Embedding(ROWS, DIM, padding_idx=4, optimizer=SGD(lr=1.0))
    with torch.no_grad():
        embedding.weight[4] = 5.0
    embedding.sync()
    embedding.engine.clear_trackers(0, 0, ROWS, dirty=True)
    before = embedding.weight.detach().clone()
    out = embedding(torch.tensor([4, 7, 4]))
    out.sum().backward()
    assert torch.equal(out[0], torch.full((DIM,), 5.0))
    changed = (embedding.weight != before).any(dim=1).nonzero().reshape(-1)
    assert changed.tolist() == [7]
    assert embedding.engine.counts(0).nonzero()[0].tolist() == [7]
    assert embedding.engine.dirty(0).nonzero()[0].tolist() == [7]


@pytest.mark.parametrize("padding_idx", [None, 4])
def test_id_out_of_range(padding_idx: int | None) -> None:
    embedding = Embedding(ROWS, DIM, padding_idx=padding_idx)
    with pytest.raises(IndexError, match=r"(?=.*\b20\b)(?=.*-3\b)(?=.*position 3\b)"):
        embedding(torch.tensor([[4, 1], [2, -3]]))


def test_freeze_and_from_pretrained() -> None:
    table = torch.randn(ROWS, DIM)
    ours = Embedding.from_pretrained(table)
    assert ours.weight.data_ptr() == table.data_ptr()
    assert not ours.weight.requires_grad
    assert not ours(torch.tensor([1])).requires_grad
    assert Embedding.from_pretrained(table, False, 4, sparse=True).padding_idx == 4


@pytest.mark.parametrize(
    "options",
    [
        {"max_norm": -1.0},
        {"norm_type": 0.0},
        {"scale_grad_by_freq": True, "sparse": True},
        {"padding_idx": 20},
    ],
)
def test_refused_at_construction(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Embedding(ROWS, DIM, **options)


def test_default_dtype_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        theirs, ours = pair()
        assert ours.weight.dtype == torch.float64
        torch.testing.assert_close(run(ours, torch.arange(5)), run(theirs, torch.arange(5)))
        with pytest.raises(TypeError, match="float64"):
            Embedding(ROWS, DIM, optimizer=SGD(lr=1.0))
    finally:
        torch.set_default_dtype(torch.float32)


def test_is_torchs_embedding_for_those_who_ask() -> None:
    assert isinstance(Embedding(ROWS, DIM), nn.Embedding)
