"""Memory that is used again from step to step: fresh megabytes would cost page faults in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_ALIGNED = 64


class Scratch:
    """Arrays that are valid until `clear`; for one thread at a time."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0

    def clear(self) -> None:
        """Begin to hand the same memory out again; it grows to what the last round took."""
        if self._used > len(self._memory):
            self._memory = np.empty(self._used + self._used // 4, np.uint8)
        self._used = 0

    def take(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array that holds anything."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        begin = self._used
        self._used += -(-size // _ALIGNED) * _ALIGNED
        if self._used > len(self._memory):
            return np.empty(shape, dtype)
        return self._memory[begin : begin + size].view(dtype).reshape(shape)
