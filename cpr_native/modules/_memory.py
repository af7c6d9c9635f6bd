"""Parameters as the engine's tables: their dtypes and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._tensor import describe
from cpr_native.config import DataType

if TYPE_CHECKING:
    from cpr_native._native import TensorRef

_DATA_TYPES: dict[torch.dtype, DataType] = {getattr(torch, kind.dtype): kind for kind in DataType}


def data_type_of(where: str, dtype: torch.dtype, *, fused: bool = False) -> DataType:
    """The `DataType` of weights of `dtype`.

    Raises:
        TypeError: the engine has no such tables, or only with `optimizer=None`; the message begins with
            `where`.
    """
    kind = _DATA_TYPES.get(dtype)
    if kind is None or (fused and kind is DataType.FP64):
        names = [known.dtype for known in DataType if not (fused and known is DataType.FP64)]
        suffix = " with a fused optimizer" if fused else ""
        got = str(dtype).removeprefix("torch.")
        raise TypeError(f"{where}: expected one of {', '.join(names)}{suffix}, got {got}")
    return kind


def torch_dtype(kind: DataType) -> torch.dtype:
    """The dtype of weights of `kind`."""
    dtype: torch.dtype = getattr(torch, kind.dtype)
    return dtype


def compute_dtype(weight: torch.dtype) -> torch.dtype:
    """What the engine computes in for weights of a dtype: float64 for float64, else float32."""
    return torch.float64 if weight == torch.float64 else torch.float32


def memory_of(where: str, tensor: Tensor) -> TensorRef:
    """`describe(tensor)`; the message of its ValueError begins with `where`."""
    try:
        return describe(tensor)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def span_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses between which the elements of `tensor` lie, (0, 0) without any or if it isn't strided."""
    if tensor.layout != torch.strided or not tensor.numel():
        return 0, 0
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.data_ptr(), tensor.data_ptr() + extent * tensor.element_size()


def as_tensor(rows: NDArray[np.generic] | Tensor, kind: DataType) -> Tensor:
    """What an engine's `weight` gives of a table as a tensor of its dtype; aliased."""
    if isinstance(rows, Tensor):
        return rows
    if kind is DataType.BF16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)
