"""What the drop-ins for torch's embedding modules share: one table, torch's initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from cpr_native.config import EmbeddingBagConfig, PoolingType, Trackers
from cpr_native.device import Place
from cpr_native.modules._base import EngineModule
from cpr_native.modules._call import Request
from cpr_native.modules._lookup import look_up, renormalise
from cpr_native.modules._memory import data_type_of
from cpr_native.modules._places import Device, check_memory, check_shape, place_for
from cpr_native.modules._plan import EnginePlan, is_attached
from cpr_native.optim import FusedOptimizer

# Rows that a failure resets draw from a uniform distribution of variance 1, as torch's N(0, 1).
_RESET_BOUND = math.sqrt(3.0)


class DropIn(EngineModule):
    """An engine of one table named `weight`."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    sparse: bool
    weight: nn.Parameter

    def _build(
        self,
        rows: int,
        dim: int,
        given: Tensor | None,
        *,
        pooling: PoolingType,
        padding_idx: int | None,
        scale_grad_by_freq: bool,
        device: Device,
        dtype: torch.dtype | None,
        optimizer: FusedOptimizer | None,
        trackers: Trackers | None,
        rank_local: bool,
    ) -> None:
        fused = optimizer is not None
        if given is None:
            device = torch.get_default_device() if device is None else device
            kind = data_type_of("dtype", torch.get_default_dtype() if dtype is None else dtype, fused=fused)
        else:
            # As in torch, its device decides.
            device = device if isinstance(device, Place) else None
            kind = data_type_of("_weight", given.dtype, fused=fused)
        config = EmbeddingBagConfig(
            name="weight",
            num_embeddings=rows,
            embedding_dim=dim,
            feature_names=("input",),
            data_type=kind,
            pooling=pooling,
            weight_init_min=-_RESET_BOUND,
            weight_init_max=_RESET_BOUND,
        )
        plan = EnginePlan(
            tables=(config,),
            trackers=(trackers or Trackers(),),
            optimizer=optimizer,
            scale_grad_by_freq=scale_grad_by_freq,
            place=place_for(device, None if given is None else [given]),
        )
        if given is not None:
            check_shape("_weight", config, given)
            check_memory("_weight", given, plan.place, host_memory=False)
        EngineModule.__init__(self, plan, rank_local=rank_local, weights=None if given is None else [given])
        self.num_embeddings, self.embedding_dim, self.padding_idx = rows, dim, padding_idx
        if given is not None:
            self.weight = nn.Parameter(given.detach())
            return self._adopt()
        self.weight = nn.Parameter(self._table_view(0))
        self._adopt()
        if not is_attached(self.engine):
            self.reset_parameters()
            self.sync()

    def _pooled(self, request: Request, per_sample_weights: Tensor | None = None) -> Tensor:
        """The request's bags in the weight's dtype, after `max_norm`."""
        dtype = cast(nn.Parameter, self._parameters["weight"]).dtype
        if self.max_norm is not None:
            renormalise(self, request, self.max_norm, self.norm_type)
        if dtype in (torch.float32, torch.float64):
            return look_up(self, request, per_sample_weights, sparse=self.sparse)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.float()
        return look_up(self, request, per_sample_weights, sparse=self.sparse).to(dtype)

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
