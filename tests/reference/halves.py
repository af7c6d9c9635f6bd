"""Conversions of float16 and bfloat16 as bit arithmetic, for every value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import FloatArray

Halves = NDArray[Any]


def stored_as(patterns: NDArray[np.uint16], dtype: str) -> Halves:
    """Bit patterns as `Collection.weight` shows them: float16, or uint16 for bfloat16."""
    return patterns.view(np.float16) if dtype == "float16" else patterns


def nearest(values: FloatArray, dtype: str) -> NDArray[np.uint16]:
    """Bit patterns of `values` rounded to nearest, ties to even; NaN payloads are not meaningful."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def cut_with_noise(values: FloatArray, noise: NDArray[np.uint32], dtype: str) -> NDArray[np.uint16]:
    """Bit patterns of finite `values` after adding `noise` (32 random bits each) below the last kept bit.

    For float16 the exponent is moved first, to where its denormals are those of float32.
    """
    sign = (values.view(np.uint32) >> 31 << 15).astype(np.uint64)
    if dtype == "bfloat16":
        bits = np.abs(values).view(np.uint32).astype(np.uint64)
        return (((bits + (noise >> 16)) >> 16) | sign).astype(np.uint16)
    moved = (np.abs(values) * np.float32(2.0**-112)).view(np.uint32).astype(np.uint64)
    return (np.minimum((moved + (noise >> 19)) >> 13, 0x7C00) | sign).astype(np.uint16)


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Bit for bit, but any NaN is as good as another."""
    as_bits = [x.view(f"u{x.dtype.itemsize}") for x in (a, b)]
    return bool(((as_bits[0] == as_bits[1]) | (np.isnan(a) & np.isnan(b))).all())
