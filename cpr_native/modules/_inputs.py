"""Checks of what users pass to the modules, before any of it reaches the engine."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ID_DTYPES = (torch.int32, torch.int64)
_CPU = torch.device("cpu")


def check_ids(name: str, ids: Tensor, device: torch.device = _CPU) -> None:
    """Raise TypeError unless `ids` is a tensor of int32 or int64, ValueError unless it is on `device`."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(ids).__name__}")
    if ids.dtype not in _ID_DTYPES:
        raise TypeError(f"{name}: expected int32 or int64, got {str(ids.dtype).removeprefix('torch.')}")
    _check_device(name, ids, device)


def _check_device(name: str, x: Tensor, device: torch.device) -> None:
    if x.device != device:
        where = "in CPU memory" if device == _CPU else f"on device {device}"
        raise ValueError(f"{name}: expected a tensor {where}, got one on device {x.device}")


def check_per_sample_weights(weights: Tensor, ids: Tensor, *, pooling: str, dtype: torch.dtype) -> None:
    """Raise unless `weights` is of `dtype`, of the shape and device of `ids`, and `pooling` is "sum"."""
    if not isinstance(weights, Tensor) or weights.dtype != dtype:
        got = _name(getattr(weights, "dtype", type(weights).__name__))
        raise TypeError(f"per_sample_weights: expected a {_name(dtype)} tensor, got {got}")
    if weights.shape != ids.shape:
        raise ValueError(
            f"per_sample_weights: expected the ids' shape, {tuple(ids.shape)}, got {tuple(weights.shape)}"
        )
    _check_device("per_sample_weights", weights, ids.device)
    if pooling != "sum":
        raise ValueError(f"per_sample_weights: supported with sum pooling only, got {pooling}")


def _name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def check_options(
    *, sparse: bool, scale_grad_by_freq: bool, max_norm: float | None, norm_type: float, mode: str = "sum"
) -> None:
    """Raise ValueError for options of torch's modules that don't go together or are out of their range."""
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode: expected 'sum', 'mean' or 'max', got {mode!r}")
    if sparse and mode == "max":
        raise ValueError("sparse: not supported with mode='max', expected False, got True")
    if scale_grad_by_freq and (sparse or mode == "max"):
        other = "sparse=True" if sparse else "mode='max'"
        raise ValueError(f"scale_grad_by_freq: not supported with {other}, expected False, got True")
    if max_norm is not None and not (math.isfinite(max_norm) and max_norm >= 0.0):
        raise ValueError(f"max_norm: expected None or a finite number >= 0, got {max_norm}")
    if not norm_type > 0.0:
        raise ValueError(f"norm_type: expected a number > 0, got {norm_type}")


def wrap_padding_idx(padding_idx: int | None, num_embeddings: int) -> int | None:
    """`padding_idx` as a row in [0, num_embeddings); negative ones count from the end.

    Raises:
        ValueError: outside [-num_embeddings, num_embeddings).
    """
    if padding_idx is None:
        return None
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(
            f"padding_idx: expected a row in [-{num_embeddings}, {num_embeddings}), got {padding_idx}"
        )
    return padding_idx % num_embeddings


def check_rows(ids: Tensor, num_embeddings: int) -> None:
    """Raise IndexError naming the first id of `ids` (1-D) outside [0, num_embeddings) and its position."""
    bad = (ids < 0) | (ids >= num_embeddings)
    if bool(bad.any()):
        position = int(bad.nonzero()[0])
        raise IndexError(
            f"id {int(ids[position])} at position {position} is out of range for {num_embeddings} rows"
        )


def check_offsets(offsets: Tensor, num_ids: int) -> None:
    """Raise ValueError unless `offsets` ([bags + 1]) ascends from 0 to `num_ids`; waits once for a GPU."""
    descents = offsets[1:] < offsets[:-1]
    first, last, descends = torch.stack((offsets[0], offsets[-1], descents.any().to(offsets.dtype))).tolist()
    if first != 0:
        raise ValueError(f"offsets[0]: expected 0, got {first}")
    if descends:
        bag = int(descents.nonzero()[0])
        raise ValueError(
            f"offsets[{bag + 1}]: expected at least {int(offsets[bag])}, got {int(offsets[bag + 1])}"
        )
    if last != num_ids:
        raise ValueError(f"offsets[{len(offsets) - 1}]: expected the number of ids, {num_ids}, got {last}")
