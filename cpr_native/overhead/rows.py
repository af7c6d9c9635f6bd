"""Which rows a job uses: from the skew of its tables, what a save holds and what priority saving gains.

Lookups of a table follow Zipf's law of an exponent. Ranks are gathered in bins of equal rows, and each bin is
represented by a few rows, whose lookups between saves are drawn (Poisson).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.overhead._checks import check_number

Floats = NDArray[np.float64]

_SINGLE_RANKS = 64
_BINS = 128
_MOST_ROWS_OF_A_BIN = 8
_MOST_EXPONENT = 4.0
_MOST_SAVES = 512
_ROW_EXTRA_BYTES = 16  # id 8, row-wise optimizer state 4, count 4


@dataclass(frozen=True, kw_only=True)
class TableUse:
    """A table: `rows`, `dim` (float32 columns) and the Zipf `exponent` of its lookups, 0 for even ones.

    One lookup a sample. Raises ValueError.
    """

    rows: int
    dim: int
    exponent: float

    def __post_init__(self) -> None:
        for name in ("rows", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"TableUse: {name} must be at least 1, got {getattr(self, name)}")
        check_number("TableUse", "exponent", self.exponent, positive=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in a save: id, float32 weights, row-wise state, count."""
        return 4 * self.dim + _ROW_EXTRA_BYTES


def _bins(rows: int, exponent: float) -> tuple[Floats, Floats]:
    """Return rows in each bin of ranks and the share of the lookups of one row of it; float64 [bins]."""
    single = np.arange(1, min(rows, _SINGLE_RANKS) + 1)
    edges = np.append(single, rows + 1)
    if rows > _SINGLE_RANKS:
        tail = np.geomspace(_SINGLE_RANKS + 1, rows + 1, _BINS).round()
        edges = np.unique(np.append(single, tail))
    low, high = edges[:-1] - 0.5, edges[1:] - 0.5
    count = high - low
    power = 1.0 - exponent
    mass = np.log(high / low) if abs(power) < 1e-9 else (high**power - low**power) / power
    mass = np.where(count == 1, edges[:-1] ** -exponent, mass)
    return count, mass / mass.sum() / count


def touched_rows(rows: int, exponent: float, lookups: float) -> float:
    """Return the rows that `lookups` lookups are expected to touch."""
    count, share = _bins(rows, exponent)
    return float(np.sum(count * -np.expm1(-lookups * share)))


def fit_exponent(rows: int, lookups: int, touched: int) -> float:
    """Return the Zipf exponent at which `lookups` lookups touch `touched` of `rows` rows, 0 to 4.

    Raises ValueError for a count of rows that those lookups cannot touch.
    """
    if not 1 <= touched <= min(rows, lookups):
        raise ValueError(f"touched must be 1 to {min(rows, lookups)}, got {touched}")
    low, high = 0.0, _MOST_EXPONENT
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if touched_rows(rows, middle, lookups) > touched else (low, middle)
    return low if low > 1e-9 else 0.0


@dataclass(frozen=True, kw_only=True)
class PolicyUse:
    """What a way to choose rows comes to over a job.

    `save_bytes`: mean bytes of a save (rows alone), `save_share`: the same relative to all rows;
    `lost_share`: unsaved lookups at a failure, relative to saves of everything every T_save.
    """

    save_bytes: float
    save_share: float
    lost_share: float


Choice = Callable[[Floats, Floats, int, np.random.Generator], Floats]


def _most_used(unsaved: Floats, weight: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Ranks (small first) of the rows by use; ties by chance."""
    return -(unsaved + rng.random(len(unsaved)) * 0.5)


def _sampled(unsaved: Floats, weight: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Ranks of the rows of which one lookup in two was seen, by chance; others last."""
    seen = rng.random(len(unsaved)) < -np.expm1(-unsaved * math.log(2.0))
    return np.where(seen, rng.random(len(unsaved)), np.inf)


def _random(unsaved: Floats, weight: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Ranks by chance."""
    return rng.random(len(unsaved))


def _all(unsaved: Floats, weight: Floats, number: int, rng: np.random.Generator) -> Floats:
    """No limit and no order."""
    return np.zeros(len(unsaved))


CHOICES: dict[str, Choice] = {"mfu": _most_used, "ssu": _sampled, "random": _random, "delta": _all}
"""Policies whose choice depends on lookups alone. `delta` takes every touched row."""


def policy_use(
    tables: Sequence[TableUse],
    large: Sequence[int],
    choice: str,
    *,
    fraction: float,
    cover_hours: float,
    total_hours: float,
    samples_per_hour: float,
    seed: int = 0,
) -> PolicyUse:
    """Play a job's saves every `fraction * cover_hours` hours and return what they hold and leave unsaved.

    `large`: indices of the tables of which a save takes `fraction` of the rows (all touched ones under
    "delta"); the others are saved whole. Raises ValueError, KeyError for a choice that does not exist.
    """
    check_number("policy_use", "samples_per_hour", samples_per_hour, positive=True)
    every = fraction * cover_hours
    saves = min(_MOST_SAVES, max(1, math.ceil(total_hours / every)))
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0x805, seed])))
    lookups = every * samples_per_hour
    written = kept = 0.0
    for index, table in enumerate(tables):
        if index not in large and choice != "delta":
            written += table.rows * table.row_bytes
            kept += lookups / 2
            continue
        rows = table.rows if choice == "delta" else max(1, int(fraction * table.rows))
        saved, unsaved = _play(table, CHOICES[choice], rows, saves, lookups, rng)
        written += saved * table.row_bytes
        kept += unsaved + lookups / 2
    hours = np.minimum(np.arange(saves) * every, total_hours)
    age = np.mod(hours + every / 2, cover_hours)
    vanilla = float(age.mean()) * samples_per_hour * len(tables)
    everything = sum(table.rows * table.row_bytes for table in tables)
    return PolicyUse(save_bytes=written, save_share=written / everything, lost_share=kept / vanilla)


def _play(
    table: TableUse, order: Choice, budget: int, saves: int, lookups: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the rows of a mean save of `table` and the lookups a mean save leaves unsaved."""
    count, share = _bins(table.rows, table.exponent)
    copies = np.minimum(count, _MOST_ROWS_OF_A_BIN).astype(np.int64)
    weight, rate = np.repeat(count / copies, copies), np.repeat(share, copies) * lookups
    unsaved = np.zeros(len(weight))
    saved = left = 0.0
    for number in range(saves):
        left += float(unsaved @ weight)  # of the saves before: what is lost beside the newest interval
        unsaved += rng.poisson(rate)
        rank = order(unsaved, weight, number, rng)
        touched = (unsaved > 0) | (order is _random)
        rank = np.where(touched, rank, np.inf)
        by_rank = np.argsort(rank, kind="stable")
        room = np.clip(budget - np.append(0.0, np.cumsum(weight[by_rank])[:-1]), 0.0, weight[by_rank])
        taken = room / weight[by_rank] * np.isfinite(rank[by_rank])
        saved += float(taken @ weight[by_rank])
        unsaved[by_rank] *= 1.0 - taken
    return saved / saves, left / saves
