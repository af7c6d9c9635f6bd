"""Checks of what users pass to the modules, before any of it reaches the engine."""

from __future__ import annotations

import torch
from torch import Tensor

_ID_DTYPES = (torch.int32, torch.int64)


def check_ids(name: str, ids: Tensor) -> None:
    """Raise TypeError unless `ids` is a tensor of int32 or int64, ValueError unless it lies in CPU memory."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(ids).__name__}")
    if ids.dtype not in _ID_DTYPES:
        raise TypeError(f"{name}: expected int32 or int64, got {str(ids.dtype).removeprefix('torch.')}")
    if not ids.is_cpu:
        raise ValueError(f"{name}: expected a tensor in CPU memory, got one on device {ids.device}")


def check_per_sample_weights(weights: Tensor, ids: Tensor, *, mean: bool) -> None:
    """Raise unless `weights` is float32, of the shape of `ids`, on the CPU, and nothing is pooled by mean."""
    if not isinstance(weights, Tensor) or weights.dtype != torch.float32:
        got = getattr(weights, "dtype", type(weights).__name__)
        raise TypeError(f"per_sample_weights: expected a float32 tensor, got {got}")
    if weights.shape != ids.shape:
        raise ValueError(
            f"per_sample_weights: expected the ids' shape, {tuple(ids.shape)}, got {tuple(weights.shape)}"
        )
    if not weights.is_cpu:
        raise ValueError(f"per_sample_weights: expected CPU memory, got device {weights.device}")
    if mean:
        raise ValueError("per_sample_weights: supported with sum pooling only, got mean")


def check_unsupported(*, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Raise ValueError for options of torch's modules that the engine doesn't have yet."""
    if max_norm is not None:
        raise ValueError(f"max_norm: not supported yet, expected None, got {max_norm}")
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq: not supported yet, expected False, got True")


def check_placement(device: torch.device | str | int | None, dtype: torch.dtype | None) -> None:
    """Raise unless a new weight would be float32 in CPU memory."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype != torch.float32:
        raise TypeError(f"dtype: expected float32, got {str(dtype).removeprefix('torch.')}")
    place = torch.get_default_device() if device is None else torch.device(device)
    if place.type != "cpu":
        raise ValueError(f"device: expected cpu, got {place}")


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
    """Raise ValueError unless `offsets` ([bags + 1]) ascends from 0 to `num_ids`."""
    if int(offsets[0]) != 0:
        raise ValueError(f"offsets[0]: expected 0, got {int(offsets[0])}")
    descents = (offsets[1:] < offsets[:-1]).nonzero()
    if len(descents):
        bag = int(descents[0])
        raise ValueError(
            f"offsets[{bag + 1}]: expected at least {int(offsets[bag])}, got {int(offsets[bag + 1])}"
        )
    if int(offsets[-1]) != num_ids:
        raise ValueError(
            f"offsets[{len(offsets) - 1}]: expected the number of ids, {num_ids}, got {int(offsets[-1])}"
        )
