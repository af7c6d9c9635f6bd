"""The rows that a policy names itself, as masks of one table: bool [rows]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _largest(keys: NDArray[np.uint64] | NDArray[np.float32], quota: int) -> NDArray[np.bool_]:
    """Return the `quota` largest of `keys`, which has more; of equal ones the lower rows."""
    least = np.partition(keys, len(keys) - quota)[len(keys) - quota]
    taken: NDArray[np.bool_] = keys > least
    taken[np.flatnonzero(keys == least)[: quota - np.count_nonzero(taken)]] = True
    return taken


def most_changed_rows(changes: NDArray[np.float32], quota: int) -> NDArray[np.bool_]:
    """Return the `quota` rows that changed most, of equal ones the lower rows.

    `changes`: float32 [rows], no NaN. Rows that did not change are never taken. O(rows).
    """
    moved: NDArray[np.bool_] = changes > 0
    return _largest(changes, quota) if np.count_nonzero(moved) > quota else moved


def drawn_rows(rows: int, quota: int, *, seed: int, number: int, table: int) -> NDArray[np.bool_]:
    """Return `quota` of `rows` rows, drawn without replacement: a function of the arguments alone.

    Those with the largest of one raw 64-bit number each, of PCG64 (O'Neill, 2014) seeded by NumPy's
    SeedSequence((seed, number, table)), of equal ones the lower rows. O(rows), 16 bytes a row for its time.
    """
    if quota >= rows:
        return np.ones(rows, np.bool_)
    return _largest(np.random.PCG64((seed, number, table)).random_raw(rows), quota)


def next_rows(rows: int, quota: int, *, number: int) -> NDArray[np.bool_]:
    """Return the `quota` rows, cyclically, that follow those of the saves before, from row 0."""
    taken = np.zeros(rows, np.bool_)
    first = number * quota % rows
    taken[first : first + quota] = True
    taken[: max(0, min(first + quota - rows, rows))] = True
    return taken
