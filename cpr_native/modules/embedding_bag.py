"""`EmbeddingBag`: torch's `nn.EmbeddingBag` on the native engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cpr_native.config import PoolingType, Trackers
from cpr_native.modules._call import Request, even_offsets
from cpr_native.modules._dropin import DropIn
from cpr_native.modules._inputs import (
    check_ids,
    check_options,
    check_per_sample_weights,
    wrap_padding_idx,
)
from cpr_native.modules._places import Device
from cpr_native.optim import FusedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Self

_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN, "max": PoolingType.MAX}


class EmbeddingBag(DropIn, nn.EmbeddingBag):
    """`torch.nn.EmbeddingBag` with tracked rows and, on request, the optimizer inside backward.

    Arguments, attributes and initial weights (under the same `torch.manual_seed`) are torch's; so are
    devices: ids and all that comes with them lie where the weight does, on the CPU or a GPU.
    Where torch crashes or is silently wrong (empty or unsorted offsets, a last offset that isn't the number
    of ids) a ValueError is raised; a 2-D input of 0 columns gives zeros; `scale_grad_by_freq` divides by the
    row's own count (torch's CPU kernel may take another row's).

    Args:
        max_norm: forward scales the looked-up rows down to this norm, in `eval()` and under `no_grad` too;
            they become dirty, the padding row among them.
        _weight: [num_embeddings, embedding_dim], contiguous: becomes the parameter, not copied.
        dtype: float32, float16, bfloat16 or, with `optimizer=None`, float64.
        optimizer: one of `cpr_native.optim`, applied inside backward (`EngineModule` has the semantics), or
            None: backward gives `weight.grad` for any torch optimizer (as `sparse` says: sparse with one
            entry a row, or dense).
        trackers: of the table; None for `Trackers()`. The padding row is neither counted nor dirty.
        rank_local: the tables of each rank of `torch.distributed` may differ.

    Raises:
        ValueError: options that don't go together (two of `sparse`, `scale_grad_by_freq` and mode "max"), an
            unknown mode, a size, norm or padding_idx out of its range, another device.
        TypeError: a dtype that the engine doesn't have.
    """

    weight: nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
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
            mode=mode,
        )
        self._build(
            num_embeddings,
            embedding_dim,
            _weight,
            pooling=_POOLING[mode],
            padding_idx=wrap_padding_idx(padding_idx, num_embeddings),
            scale_grad_by_freq=scale_grad_by_freq,
            device=device,
            dtype=dtype,
            optimizer=optimizer,
            trackers=trackers,
            rank_local=rank_local,
        )
        self.max_norm, self.norm_type, self.scale_grad_by_freq = max_norm, norm_type, scale_grad_by_freq
        self.mode, self.sparse, self.include_last_offset = mode, sparse, include_last_offset

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, *args: Any, **kwargs: Any) -> Self:
        """Make a module whose weight is `embeddings` ([rows, dim]; aliased), frozen or not.

        The other arguments are torch's, in torch's order, and the keyword-only ones of the class.
        """
        names = (
            "max_norm",
            "norm_type",
            "scale_grad_by_freq",
            "mode",
            "sparse",
            "include_last_offset",
            "padding_idx",
        )
        rows, dim = _matrix_shape(embeddings)
        module = cls(rows, dim, _weight=embeddings, **dict(zip(names, args, strict=False)), **kwargs)
        module.weight.requires_grad = not freeze
        return module

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look up and pool bags of rows.

        Args:
            input: ids, int32 or int64, where the weight is: [bags, ids per bag], or [n] with `offsets`;
                copied.
            offsets: where each bag begins, ascending from 0, int32 or int64, there too: [bags], or
                [bags + 1] ending with n under `include_last_offset`; None for a 2-D input.
            per_sample_weights: of the shape of `input` and the weight's dtype; mode "sum" only; may require
                a gradient.

        Returns:
            [bags, embedding_dim], of the weight's dtype, new memory; an empty bag gives zeros.

        Raises:
            IndexError: an id out of range; names id, position and table size. Nothing is counted or written.
                On a GPU it is raised by the next call, and so are offsets that don't fit.
            TypeError: a wrong dtype.
            ValueError: offsets that don't fit, a wrong shape or device, per-sample weights with mode "mean"
                or "max".
        """
        check_ids("input", input, self._input_device(input))
        if per_sample_weights is not None:
            check_per_sample_weights(per_sample_weights, input, pooling=self.mode, dtype=self.weight.dtype)
            per_sample_weights = per_sample_weights.reshape(-1).contiguous()
        ids = input.reshape(-1).contiguous()
        if input.ndim == 2 and offsets is None:
            bags, columns = input.shape
            offsets = None if columns else even_offsets(bags, 0, ids.device)
            request = Request(ids, offsets, bags, columns, self.padding_idx)
        elif input.ndim == 1 and offsets is not None:
            bounds = self._bounds(offsets, ids.shape[0])
            request = Request(ids, bounds, bounds.shape[0] - 1, padding_idx=self.padding_idx)
        else:
            got = "none" if offsets is None else "some"
            raise ValueError(
                f"input: expected 1-D with offsets or 2-D without, got {input.ndim}-D with {got}"
            )
        return self._pooled(request, per_sample_weights)

    def _bounds(self, offsets: Tensor, num_ids: int) -> Tensor:
        """`offsets` as [bags + 1] with the number of ids at the end."""
        check_ids("offsets", offsets, self._device)
        if offsets.ndim != 1:
            raise ValueError(f"offsets: expected 1-D, got shape {tuple(offsets.shape)}")
        count = offsets.shape[0]
        if self.include_last_offset:
            if count == 0:
                raise ValueError("offsets: expected at least 1 element under include_last_offset, got none")
            return offsets.contiguous()
        if count == 0 and num_ids > 0:
            raise ValueError(f"offsets: expected at least 1 element for {num_ids} ids, got none")
        bounds = torch.empty(count + 1, dtype=torch.int64, device=offsets.device)
        bounds[:count] = offsets
        bounds[count] = num_ids
        return bounds


def _matrix_shape(embeddings: Tensor) -> tuple[int, int]:
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings: expected 2-D, got {embeddings.ndim}-D")
    return embeddings.shape[0], embeddings.shape[1]
