"""Weights of rows as codes of 8 or 4 bits between the row's own extremes, with a bound of the error.

A code c of a row stands for minimum + c * step, computed in float64 and rounded to the table's dtype. The
same rows give the same bytes everywhere: every operation is one of IEEE 754, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.store.schema import TableSchema

BITS = (8, 4)
_RANGE_BYTES = 12  # minimum, step and bound of a row
_BLOCK = 1 << 16  # weights at a time: the temporary arrays stay in the cache

# Relative error of a rounded value, smallest subnormal. Of float64 rows the minimum and the step are float32.
_ROUNDING = {
    "float64": (2.0**-23, 2.0**-149),
    "float32": (2.0**-23, 2.0**-149),
    "float16": (2.0**-10, 2.0**-24),
    "bfloat16": (2.0**-7, 2.0**-133),
}


@dataclass(frozen=True)
class QuantisedRows:
    """Rows of a table: codes [n, ceil(dim * bits / 8)]; range [n, 2]: minimum and step; bound [n]."""

    codes: NDArray[np.uint8]
    range: NDArray[np.float32]
    bound: NDArray[np.float32]


def check_bits(bits: object) -> None:
    """Raises ValueError unless `bits` is None, 8 or 4."""
    if bits is not None and bits not in BITS:
        raise ValueError(f"quantise: expected None, 8 or 4 bits, got {bits!r}")


def code_bytes(dim: int, bits: int) -> int:
    """Returns the bytes of a row's codes."""
    return (dim * bits + 7) // 8


def saves_bytes(table: TableSchema, bits: int) -> bool:
    """Whether quantised rows of a table are smaller than its rows; others are always written as they are."""
    return code_bytes(table.dim, bits) + _RANGE_BYTES < table.dim * np.dtype(table.weight_array).itemsize


def bits_of(table: TableSchema, columns: int) -> int | None:
    """Returns the bits of codes of that many bytes a row; None when no such rows of the table are written."""
    return next(
        (bits for bits in BITS if columns == code_bytes(table.dim, bits) and saves_bytes(table, bits)), None
    )


def quantise(weight: NDArray[Any], table: TableSchema, bits: int) -> tuple[QuantisedRows, NDArray[np.bool_]]:
    """Returns the quantised rows of `weight` [n, dim], and which rows are within the bound.

    Those that are not (a value that isn't finite, a range beyond float32 or too small for its step) are left
    out of the first.
    """
    count = len(weight)
    codes = np.empty((count, code_bytes(table.dim, bits)), np.uint8)
    spans = np.empty((count, 2), np.float32)
    bound = np.empty(count, np.float32)
    fits = np.empty(count, np.bool_)
    rows = max(1, _BLOCK // table.dim)
    for begin in range(0, count, rows):
        part = slice(begin, begin + rows)
        codes[part], spans[part], bound[part], fits[part] = _quantise(weight[part], table.dtype, bits)
    if not fits.all():
        codes, spans, bound = codes[fits], spans[fits], bound[fits]
    return QuantisedRows(codes, spans, bound), fits


def _quantise(
    weight: NDArray[Any], dtype: str, bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    levels = 2**bits - 1
    with np.errstate(all="ignore"):
        exact = _to_float64(np.ascontiguousarray(weight.T), dtype)  # [dim, n]: fast along a column
        low = exact.min(axis=0)
        span = np.empty((len(weight), 2), np.float32)
        span[:, 0] = low
        span[:, 1] = (exact.max(axis=0) - low) / levels
        foreign = ~np.isfinite(span).all(axis=1)
        if foreign.any():
            exact[:, foreign], span[foreign] = 0, 0
        low, step = span.astype(np.float64).T
        scaled = exact - low
        scaled /= np.where(step > 0, step, 1.0)
        np.rint(scaled, out=scaled)
        unpacked = np.clip(scaled, 0, levels, out=scaled).astype(np.uint8)
        error = _to_float64(_values(unpacked, low, step, dtype), dtype)
        error -= exact
        largest = np.maximum(error.max(axis=0), -error.min(axis=0))
        largest[foreign] = np.nan
        bound = largest.astype(np.float32)
        below = bound < largest  # rounded down
        bound[below] = np.nextafter(bound[below], np.float32(np.inf))
    codes = _pack(np.ascontiguousarray(unpacked.T), bits)
    return codes, span, bound, within_bound(span, bound, dtype, bits)


def within_bound(
    span: NDArray[np.float32], bound: NDArray[np.float32], dtype: str, bits: int
) -> NDArray[np.bool_]:
    """Whether the range of each row is finite and its error at most half a step and what rounding adds."""
    relative, least = _ROUNDING[dtype]
    with np.errstate(all="ignore"):
        low, step = span[:, 0].astype(np.float64), span[:, 1].astype(np.float64)
        largest = np.maximum(np.abs(low), np.abs(low + step * (2**bits - 1)))
        allowed = step / 2 + relative * largest + least
        found: NDArray[np.bool_] = (
            np.isfinite(low) & np.isfinite(step) & (step >= 0) & (bound >= 0) & (bound <= allowed)
        )
    return found


def dequantise(rows: QuantisedRows, table: TableSchema, bits: int) -> NDArray[Any]:
    """Returns the weights that the codes stand for, [n, dim] in the array dtype of the table."""
    found = np.empty((len(rows.codes), table.dim), table.weight_array)
    block = max(1, _BLOCK // table.dim)
    for begin in range(0, len(found), block):
        part = slice(begin, begin + block)
        unpacked = _unpack(rows.codes[part], table.dim, bits)
        with np.errstate(all="ignore"):
            low, step = rows.range[part].astype(np.float64).T
            found[part] = _values(unpacked, low[:, None], step[:, None], table.dtype)
    return found


def _values(
    codes: NDArray[np.uint8], low: NDArray[np.float64], step: NDArray[np.float64], dtype: str
) -> NDArray[Any]:
    values: NDArray[np.float64] = codes * step
    values += low
    return _from_float64(values, dtype)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Two codes of 4 bits make a byte, the first in the low half; an odd last one stands alone."""
    if bits == 8:
        return codes
    packed: NDArray[np.uint8] = codes[:, ::2].copy()
    high = codes[:, 1::2]
    packed[:, : high.shape[1]] |= high << 4
    return packed


def _unpack(packed: NDArray[np.uint8], dim: int, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    codes = np.empty((len(packed), dim), np.uint8)
    codes[:, ::2] = packed & 15
    codes[:, 1::2] = packed[:, : dim // 2] >> 4
    return codes


def _to_float64(weight: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    if dtype == "bfloat16":
        return (weight.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return weight.astype(np.float64)


def _from_float64(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False)
    # Round to nearest, ties to even, as torch does; by way of float32.
    raw = values.astype(np.float32).view(np.uint32)
    rounded: NDArray[np.uint16] = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded
