"""Trackers and the hashes behind random choices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reference.arithmetic import IntArray

MAX_COUNT = 2**27 - 1


def add_counts(
    counts: NDArray[np.uint32], ids: IntArray, multiplicity: NDArray[np.uint32] | None = None
) -> None:
    """Add how often each row is in `ids` to `counts` ([n]) in place, saturating at 2^27 - 1.

    `multiplicity` ([ids]): the accesses that each id stands for; None: one.
    """
    total = counts.astype(np.int64)
    for position, row in enumerate(ids):
        total[row] += 1 if multiplicity is None else int(multiplicity[position])
    counts[:] = np.minimum(total, MAX_COUNT).astype(np.uint32)


def mark_rows(dirty: NDArray[np.bool_], ids: IntArray) -> None:
    """Set the bit of each row of `ids` in `dirty` ([n]) in place."""
    dirty[ids] = True


def mix64(x: int) -> int:
    """SplitMix64's finaliser of a 64-bit value."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def hash2(a: int, b: int) -> int:
    """The engine's hash of two 64-bit values."""
    step = 0x9E3779B97F4A7C15
    return mix64((mix64((a + step) % 2**64) + b * step) % 2**64)


def table_key(seed: int, name: str) -> int:
    """FNV-1a of a table's name, mixed with the seed."""
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = ((digest ^ byte) * 0x100000001B3) % 2**64
    return hash2(seed, digest)


def sampled_positions(seed: int, step: int, count: int, period: int) -> NDArray[np.bool_]:
    """Which of the positions [0, count) of a batch's ids are sampled in `step`: one in `period`, by hash."""
    sampled = np.ones(count, dtype=np.bool_)
    for position in range(count):
        for draw in range(period.bit_length() - 1):
            bits = hash2(hash2((hash2(seed, 0x53) + draw) % 2**64, step), position // 64)
            sampled[position] &= bits >> (position % 64) & 1
    return sampled


def sampled_repeats(seed: int, step: int, multiplicity: NDArray[np.uint32], period: int) -> NDArray[np.bool_]:
    """For which ids an access after the first is sampled, of the `multiplicity` that each stands for."""
    sampled = np.zeros(len(multiplicity), dtype=np.bool_)
    key = hash2(hash2(seed, 0x53), 0x4D)
    for position, accesses in enumerate(multiplicity.tolist()):
        for access in range(accesses - 1):
            drawn = True
            for draw in range(period.bit_length() - 1):
                bits = hash2(hash2((key + draw) % 2**64, step), (position << 32) + access // 64)
                drawn = drawn and bool(bits >> (access % 64) & 1)
            sampled[position] |= drawn
    return sampled


class SampledList:
    """The sub-sampled used list of one table: `fraction * rows` slots, at least 1, of one row each."""

    def __init__(self, rows: int, fraction: float, seed: int, name: str) -> None:
        slots = max(1, int(fraction * rows))
        self._groups = 64 if slots >= 4096 else 1
        self._slots_per_group = slots // self._groups
        self._key = hash2(table_key(seed, name), 0x55)
        self._holder: dict[int, int] = {}

    def _slot(self, row: int) -> int:
        digest = (row * (self._key | 1) + (self._key << 32)) % 2**64
        group = digest >> 58 if self._groups > 1 else 0
        return group * self._slots_per_group + ((digest >> 26) % 2**32 * self._slots_per_group >> 32)

    def update(self, rows: IntArray) -> None:
        """Enter the sampled rows of one step: each evicts the holder; of several the largest row stays."""
        for row in np.unique(rows).tolist():
            self._holder[self._slot(row)] = row

    def rows(self) -> list[int]:
        """The listed rows, ascending."""
        return sorted(self._holder.values())
