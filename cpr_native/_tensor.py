"""The one way in which memory of torch and NumPy reaches native code. Torch is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_native._native import TensorRef

__all__ = ["describe", "dtype_name"]

# dtype object (torch or NumPy) -> its NumPy name; filled on first sight, bounded by the number of dtypes.
_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """Return the name that native code has for a dtype of torch or NumPy."""
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype).removeprefix("torch.")
    return name


def describe(x: Tensor | NDArray[Any]) -> TensorRef:
    """Return `(address, shape, dtype name)` of `x`; nothing is copied.

    The reference is valid as long as `x` keeps its storage: the caller holds `x` during the native call.

    Args:
        x: C-contiguous torch tensor in CPU memory, or C-contiguous NumPy array in native byte order; any
            shape.

    Raises:
        TypeError: `x` is neither a tensor nor an array.
        ValueError: not contiguous, not in CPU memory, or in foreign byte order.
    """
    if isinstance(x, np.ndarray):
        return _describe_array(x)
    try:
        is_cpu, dtype = x.is_cpu, x.dtype
    except AttributeError:
        raise TypeError(f"expected a torch tensor or a NumPy array, got {type(x).__name__}") from None
    if not is_cpu:
        raise ValueError(f"expected a tensor in CPU memory, got one on device {x.device}")
    if not x.is_contiguous():
        raise ValueError(f"expected a contiguous tensor, got layout {x.layout}, shape {tuple(x.shape)}")
    return x.data_ptr(), x.shape, _names.get(dtype) or dtype_name(dtype)


def _describe_array(x: NDArray[Any]) -> TensorRef:
    if not x.flags.c_contiguous:
        raise ValueError(f"expected a C-contiguous array, got strides {x.strides} for shape {x.shape}")
    if not x.dtype.isnative:
        raise ValueError(f"expected an array in native byte order, got {x.dtype}")
    return x.ctypes.data, x.shape, _names.get(x.dtype) or dtype_name(x.dtype)
