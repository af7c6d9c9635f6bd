"""The rows that a policy names itself, as masks of one table: bool [rows]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def _largest(keys: NDArray[np.uint64] | NDArray[np.float32], quota: int) -> NDArray[np.bool_]:
    """Return the `quota` largest of `keys`, which has more; of equal ones the lower rows."""
    least = np.partition(keys, len(keys) - quota)[len(keys) - quota]
    taken: NDArray[np.bool_] = keys > least
    taken[np.flatnonzero(keys == least)[: quota - np.count_nonzero(taken)]] = True
    return taken


def fitting_blocks(
    keys: Sequence[NDArray[np.float64]], dims: Sequence[int], fraction: float, *, number: int
) -> list[NDArray[np.bool_]]:
    """Return which rows of several tables to take: `fraction` of all their numbers, by the largest keys.

    `keys` of each table [rows], `dims`: numbers of its rows; `number`: of the save. Goes down the keys above
    0, of equal ones by table and row, as long as they fit. The first that doesn't is taken with the
    probability that is the part of it that would, so that saves are of that size on average: by a raw number
    of PCG64 seeded by `number`, a function of the arguments alone.
    """
    key = np.concatenate(keys)
    size = np.repeat(dims, [len(each) for each in keys])
    left = fraction * float(size.sum())
    taken = np.zeros(len(key), np.bool_)
    drawn = int(np.random.PCG64(number).random_raw()) / 2.0**64
    for row in np.argsort(-key, kind="stable"):
        if key[row] <= 0 or left <= 0:
            break
        taken[row] = size[row] <= left or drawn < left / size[row]
        left -= size[row]
    return np.split(taken, np.cumsum([len(each) for each in keys])[:-1])


def next_blocks(
    rows: Sequence[int], dims: Sequence[int], fraction: float, *, number: int
) -> list[NDArray[np.bool_]]:
    """Return the rows of several tables that come next in turn, `fraction` of all their numbers on average.

    The tables lie one after the other; a save takes the rows that begin in its part of that length,
    cyclically.
    """
    size = np.repeat(dims, rows)
    total = int(size.sum())
    first, end = (int(save * fraction * total) for save in (number, number + 1))
    taken = (np.cumsum(size) - size - first) % total < end - first
    return np.split(taken, np.cumsum(rows)[:-1])


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
