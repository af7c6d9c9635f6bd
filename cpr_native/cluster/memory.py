"""Memory of answers, used again: fresh megabytes cost the kernel's zeroing and page faults in every step."""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

_KEPT = 8


def _references(arrays: list[NDArray[np.float32]], number: int) -> int:
    array = arrays[number]
    return sys.getrefcount(array)


_FREE = _references([np.empty(0, np.float32)], 0)  # to an array that only the list has


class RecycledFloats:
    """Arrays of float32 whose memory comes back when whoever was given one holds it no more.

    That is known by the references to it, views and buffers of it included. Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[NDArray[np.float32]] = []

    def take(self, size: int) -> NDArray[np.float32]:
        """Return an array of `size` numbers of any values."""
        with self._lock:
            free = [n for n in range(len(self._kept)) if _references(self._kept, n) == _FREE]
            for number in free:
                if len(self._kept[number]) >= size:
                    return self._kept[number][:size]
            if free:
                del self._kept[free[0]]  # sizes have grown
            made = np.empty(size + size // 8, np.float32)
            if len(self._kept) < _KEPT:
                self._kept.append(made)
            return made[:size]
