"""One batch of click samples in the order an `EmbeddingBagCollection` reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ClickBatch:
    """Samples of one batch of B; every tensor is contiguous, on the CPU and owned by the batch.

    Attributes:
        dense: float32 [B, 13], `log(1 + x)` of the integer features.
        ids: int64 [26 * B], one row id per (feature, sample), feature-major: feature f of sample b at `f * B
            + b`.
        offsets: int64 [26 * B + 1], 0, 1, ..., 26 * B: every bag holds one id.
        labels: float32 [B], 0 or 1.
    """

    dense: Tensor
    ids: Tensor
    offsets: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.labels.shape[0]


def one_id_offsets(ids: int) -> Tensor:
    """Return int64 [ids + 1] offsets of bags that hold one id each."""
    return torch.arange(ids + 1, dtype=torch.int64)
