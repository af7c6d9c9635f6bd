"""Any bags: `EmbeddingBag` computes what torch computes, forward and backward. 2,000 cases in CI."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cpr_native import SGD, EmbeddingBag

ROWS, DIM = 9, 3
CASES = 2_000 if "CI" in os.environ else 200
# Torch sums half precision in half precision here and there.
TOLERANCES = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-11, 1e-11),
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (1e-1, 2e-1),
}


@dataclass(frozen=True)
class Case:
    """One module and one batch."""

    lengths: list[int]
    columns: int | None
    mode: str
    dtype: torch.dtype
    layout: str
    padding_idx: int | None
    last: bool
    weighted: bool
    strided: bool
    ids_dtype: torch.dtype
    offsets_dtype: torch.dtype
    seed: int

    @property
    def fused(self) -> bool:
        return self.layout == "fused" and self.dtype == torch.float32

    @property
    def options(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "padding_idx": self.padding_idx,
            "include_last_offset": self.last,
            "sparse": self.layout == "sparse" and self.mode != "max",
            "dtype": self.dtype,
        }


INTEGERS = st.sampled_from([torch.int32, torch.int64])
cases = st.builds(
    Case,
    lengths=st.lists(st.integers(0, 7) | st.just(40), max_size=6),
    columns=st.none() | st.none() | st.integers(1, 5),
    mode=st.sampled_from(["sum", "mean", "max"]),
    dtype=st.sampled_from(list(TOLERANCES)),
    layout=st.sampled_from(["dense", "sparse", "fused"]),
    padding_idx=st.none() | st.integers(-ROWS, ROWS - 1),
    last=st.booleans(),
    weighted=st.booleans(),
    strided=st.booleans(),
    ids_dtype=INTEGERS,
    offsets_dtype=INTEGERS,
    seed=st.integers(0, 2**16),
)


def strided(tensor: Tensor) -> Tensor:
    """The same values, not contiguous."""
    return torch.stack([tensor, tensor + 1], dim=-1)[..., 0]


def inputs(case: Case) -> tuple[Tensor, Tensor | None, Tensor | None]:
    lengths = torch.tensor(case.lengths, dtype=torch.int64)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    offsets: Tensor | None = (starts if case.last else starts[:-1]).to(case.offsets_dtype)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), dtype=case.ids_dtype)
    if case.columns is not None:
        ids, offsets = torch.randint(0, ROWS, (len(lengths), case.columns), dtype=case.ids_dtype), None
    weights = torch.randn(ids.shape, dtype=case.dtype) if case.weighted and case.mode == "sum" else None
    if case.strided:
        ids = strided(ids)
        offsets = None if offsets is None else strided(offsets)
        weights = None if weights is None else strided(weights)
    return ids, offsets, weights


def trained(module: nn.EmbeddingBag, batch: Any, grad: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """Output and gradients of a module, and the gradient that its output got."""
    ids, offsets, weights = batch
    own = None if weights is None else weights.detach().requires_grad_()
    before = module.weight.detach().clone()
    out = module(ids, offsets, own)
    grad = torch.randn_like(out) if grad is None else grad
    out.backward(grad)
    moved = before - module.weight.detach() if module.weight.grad is None else module.weight.grad.to_dense()
    return [out.detach(), moved, *([] if own is None or own.grad is None else [own.grad])], grad


@settings(max_examples=CASES, deadline=None)
@given(case=cases)
def test_any_bags(case: Case) -> None:
    torch.manual_seed(case.seed)
    theirs = nn.EmbeddingBag(ROWS, DIM, **case.options)
    given = theirs.weight.detach().clone()
    optimizer = SGD(lr=1.0) if case.fused else None
    ours = EmbeddingBag(ROWS, DIM, **case.options, _weight=given, optimizer=optimizer)
    batch = inputs(case)
    expected, grad = trained(theirs, batch, None)
    found, _ = trained(ours, batch, grad)
    rtol, atol = TOLERANCES[case.dtype]
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
