"""What the drop-ins for torch's embedding modules share: one table, torch's initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from cpr_native._tensor import describe
from cpr_native.config import EmbeddingBagConfig, PoolingType, Trackers
from cpr_native.modules._base import EngineModule
from cpr_native.modules._inputs import check_placement
from cpr_native.modules._plan import EnginePlan
from cpr_native.optim import FusedOptimizer

# Rows that a failure resets draw from a uniform distribution of variance 1, as torch's N(0, 1).
_RESET_BOUND = math.sqrt(3.0)


class DropIn(EngineModule):
    """An engine of one table named `weight`."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: nn.Parameter

    def _build(
        self,
        rows: int,
        dim: int,
        given: Tensor | None,
        *,
        pooling: PoolingType,
        padding_idx: int | None,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
        optimizer: FusedOptimizer | None,
        trackers: Trackers | None,
        rank_local: bool,
    ) -> None:
        if given is None:
            check_placement(device, dtype)
        else:
            _check_given(given, rows, dim)
        config = EmbeddingBagConfig(
            name="weight",
            num_embeddings=rows,
            embedding_dim=dim,
            feature_names=("input",),
            pooling=pooling,
            weight_init_min=-_RESET_BOUND,
            weight_init_max=_RESET_BOUND,
        )
        plan = EnginePlan(tables=(config,), trackers=(trackers or Trackers(),), optimizer=optimizer)
        EngineModule.__init__(self, plan, rank_local=rank_local)
        self.num_embeddings, self.embedding_dim, self.padding_idx = rows, dim, padding_idx
        if given is not None:
            self.weight = nn.Parameter(given.detach())
        else:
            self.weight = nn.Parameter(self._table_view(0))
            self.reset_parameters()
        self.sync()

    def _weights(self) -> list[nn.Parameter]:
        return [cast(nn.Parameter, self._parameters["weight"])]

    def reset_parameters(self) -> None:
        """Draw new weights from N(0, 1) with torch's generator; the padding row becomes zero."""
        nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    def mark_dirty(self, rows: Tensor | Sequence[int] | None = None) -> None:
        """Announce that `rows` (ids, or None for all) were written behind torch's back.

        Raises:
            IndexError: a row out of range.
        """
        self._mark(0, rows)


def _check_given(weight: Tensor, rows: int, dim: int) -> None:
    if tuple(weight.shape) != (rows, dim):
        raise ValueError(f"_weight: expected shape ({rows}, {dim}), got {tuple(weight.shape)}")
    if weight.dtype != torch.float32:
        raise TypeError(f"_weight: expected float32, got {str(weight.dtype).removeprefix('torch.')}")
    describe(weight)
