"""`Embedding`: torch's `nn.Embedding` on the native engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cpr_native.config import PoolingType, Trackers
from cpr_native.modules._call import Request
from cpr_native.modules._dropin import DropIn
from cpr_native.modules._inputs import check_ids, check_options, wrap_padding_idx
from cpr_native.modules._places import Device
from cpr_native.modules.embedding_bag import _matrix_shape
from cpr_native.optim import FusedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Self


class Embedding(DropIn, nn.Embedding):
    """`torch.nn.Embedding` with tracked rows and, on request, the optimizer inside backward.

    Arguments, attributes and initial weights (under the same `torch.manual_seed`) are torch's; so are
    devices: ids lie where the weight does, on the CPU or a GPU.

    Args:
        max_norm: forward scales the looked-up rows down to this norm, in `eval()` and under `no_grad` too;
            they become dirty.
        _weight: [num_embeddings, embedding_dim], contiguous: becomes the parameter, not copied.
        _freeze: the weight doesn't require a gradient.
        dtype: float32, float16, bfloat16 or, with `optimizer=None`, float64.
        optimizer: one of `cpr_native.optim`, applied inside backward (`EngineModule` has the semantics), or
            None: backward gives `weight.grad` for any torch optimizer (as `sparse` says: sparse with one
            entry a row, or dense).
        trackers: of the table; None for `Trackers()`. The padding row is neither counted nor dirty.
        rank_local: the tables of each rank of `torch.distributed` may differ.

    Raises:
        ValueError: options that don't go together (`scale_grad_by_freq` with `sparse`), a size, norm or
            padding_idx out of its range, another device.
        TypeError: a dtype that the engine doesn't have.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        optimizer: FusedOptimizer | None = None,
        trackers: Trackers | None = None,
        rank_local: bool = False,
    ) -> None:
        check_options(
            sparse=sparse,
            scale_grad_by_freq=scale_grad_by_freq,
            max_norm=max_norm,
            norm_type=norm_type,
        )
        self._build(
            num_embeddings,
            embedding_dim,
            _weight,
            pooling=PoolingType.SUM,
            padding_idx=wrap_padding_idx(padding_idx, num_embeddings),
            scale_grad_by_freq=scale_grad_by_freq,
            device=device,
            dtype=dtype,
            optimizer=optimizer,
            trackers=trackers,
            rank_local=rank_local,
        )
        self.weight.requires_grad = not _freeze
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.sparse = sparse

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, *args: Any, **kwargs: Any) -> Self:
        """Make a module whose weight is `embeddings` ([rows, dim]; aliased), frozen or not.

        The other arguments are torch's, in torch's order, and the keyword-only ones of the class.
        """
        names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        rows, dim = _matrix_shape(embeddings)
        options = {**dict(zip(names, args, strict=False)), **kwargs}
        return cls(rows, dim, _weight=embeddings, _freeze=freeze, **options)

    def forward(self, input: Tensor) -> Tensor:
        """Look up one row per id.

        Args:
            input: ids, int32 or int64, on the weight's device, any shape; copied.

        Returns:
            [*input.shape, embedding_dim], of the weight's dtype, new memory.

        Raises:
            IndexError: an id out of range; names id, position (in the flattened input) and table size.
                Nothing is counted or written. On a GPU it is raised by the next call.
            TypeError: a wrong dtype.
            ValueError: on another device than the weight.
        """
        check_ids("input", input, self._input_device(input))
        ids = input.reshape(-1).contiguous()
        request = Request(ids, None, ids.shape[0], 1, self.padding_idx)
        rows = self._pooled(request)
        if self.padding_idx is not None:
            # Left out of the lookup, the padding row is a constant: no gradient, not tracked.
            rows = torch.where(ids.eq(self.padding_idx).unsqueeze(1), self._constant(self.padding_idx), rows)
        return rows.view(*input.shape, self.embedding_dim)

    def _constant(self, row: int) -> Tensor:
        if self.max_norm is None:
            return self.weight[row].detach()
        # A compiled graph that reads the parameter may do so before `max_norm` was applied.
        with torch.no_grad():
            ids = torch.full((1,), row, dtype=torch.int64, device=self._device)
            return self._pooled(Request(ids, None, 1, 1))
