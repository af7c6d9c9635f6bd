"""float16 and bfloat16: stochastic rounding by a hash of table, step, row and column."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import FloatArray, IntArray
from reference.trackers import hash2

DROPPED_BITS = {"float16": 13, "bfloat16": 16}
SALT = 0x52


def as_floats(stored: NDArray[Any], dtype: str) -> FloatArray:
    """What `Collection.weight` returned, as float32: exact."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def rounding_key(table_key: int, step: int) -> int:
    """The hash key of a table in a step; `step`: steps done before."""
    return hash2((table_key + SALT) % 2**64, step)


def element_bits(row_key: int, column: int) -> int:
    """32 random bits of one element."""
    x = (row_key + column * 0x9E3779B9) % 2**32
    x ^= x >> 16
    x = x * 0x21F0AAAD % 2**32
    x ^= x >> 15
    x = x * 0x735A2D97 % 2**32
    x ^= x >> 15
    return x ^ (row_key >> 32)


def stochastically_rounded(values: FloatArray, rows: IntArray, dtype: str, key: int) -> FloatArray:
    """Round normal `values` ([len(rows), dim]) to the next half up or down in size, by chance.

    As many random bits as are dropped are added below the half's last bit, then those bits are cut off.
    """
    dropped = DROPPED_BITS[dtype]
    bits = values.view(np.uint32).astype(np.uint64)
    for at, row in enumerate(rows):
        row_key = hash2(key, int(row))
        for column in range(values.shape[1]):
            noise = element_bits(row_key, column) >> (32 - dropped)
            bits[at, column] = (int(bits[at, column]) + noise) >> dropped << dropped
    return bits.astype(np.uint32).view(np.float32)
