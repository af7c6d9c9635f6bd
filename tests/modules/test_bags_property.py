"""Any bags: `EmbeddingBag` computes what torch computes, forward and backward."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cpr_native import SGD, EmbeddingBag

ROWS, DIM = 9, 3
bags = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=40), max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    bags=bags,
    mode=st.sampled_from(["sum", "mean"]),
    last=st.booleans(),
    padding_idx=st.none() | st.integers(-ROWS, ROWS - 1),
    weighted=st.booleans(),
    fused=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_bags(
    bags: list[list[int]],
    mode: str,
    last: bool,
    padding_idx: int | None,
    weighted: bool,
    fused: bool,
    seed: int,
) -> None:
    options = {"mode": mode, "include_last_offset": last, "padding_idx": padding_idx}
    torch.manual_seed(seed)
    theirs = nn.EmbeddingBag(ROWS, DIM, **options)
    torch.manual_seed(seed)
    ours = EmbeddingBag(ROWS, DIM, **options, optimizer=SGD(lr=1.0) if fused else None)
    ids = torch.tensor([row for bag in bags for row in bag], dtype=torch.int64)
    starts = torch.tensor([0, *(len(bag) for bag in bags)], dtype=torch.int64).cumsum(0)
    offsets = starts if last else starts[:-1]
    weights = torch.randn(len(ids)) if weighted and mode == "sum" else None
    expected, out = theirs(ids, offsets, weights), ours(ids, offsets, weights)
    torch.testing.assert_close(out, expected)
    grad = torch.randn(out.shape)
    before = ours.weight.detach().clone()
    expected.backward(grad)
    out.backward(grad)
    assert theirs.weight.grad is not None
    moved = before - ours.weight.detach() if fused else ours.weight.grad
    torch.testing.assert_close(moved, theirs.weight.grad, rtol=1e-4, atol=1e-4)
