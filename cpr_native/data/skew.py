"""The measured skew of Criteo Kaggle's features, and draws of row ranks that follow it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

_RELIABLE_COUNT = 4.0  # lookups per rank from which the measured curve is taken as it is
_TAIL_KNOTS = 128
_MAX_EXPONENT = 16.0
_BISECTIONS = 60
_SMALL_TABLE_HEAD = 4


@dataclass(frozen=True, kw_only=True)
class RankCounts:
    """Lookups of one feature by rank (1 = most used), missing values apart.

    Attributes:
        samples: samples measured.
        missing: share of samples without a value.
        first_rank: int64 [k + 1], first rank of each group of ranks, and one past the last rank seen.
        share: float64 [k], share of samples in each group; sums to `1 - missing`.
    """

    samples: int
    missing: float
    first_rank: NDArray[np.int64]
    share: NDArray[np.float64]


@cache
def measured_skew() -> tuple[RankCounts, ...]:
    """Return the curves of the 26 features, measured on 137,139 samples."""
    data = json.loads(resources.files("cpr_native.data").joinpath("skew.json").read_text(encoding="utf-8"))
    return tuple(
        RankCounts(
            samples=data["samples"],
            missing=table["missing"] / data["samples"],
            first_rank=np.asarray(table["first_rank"], dtype=np.int64),
            share=np.asarray(table["lookups"], dtype=np.float64) / data["samples"],
        )
        for table in data["tables"]
    )


def rank_quantiles(counts: RankCounts, rows: int, slots: int) -> NDArray[np.float64]:
    """Return the inverse distribution of the rank at 0, 1/slots, ..., 1: float64 [slots + 1], ascending.

    Rank 0 is the missing value (only where values were missing), 1 the most used value, `v` the last: `v =
    rows - 1` with missing values and `rows` without. A quantile q falls to rank `floor(q)`. Ranks seen at
    least 4 times keep their measured share; the other lookups follow the power law that continues from there
    to rank `v` and makes the shares add up: 137k samples show only some of the rare rows. A table with fewer
    rows than were seen keeps the measured shares of its first quarter and spreads the rest.

    Args:
        counts: the measured curve.
        rows: size of the table, at least 2.
        slots: resolution of the result, at least 1.
    """
    values = rows - 1 if counts.missing else rows
    last_rank = counts.first_rank[1:] - 1
    head_ranks = values if last_rank[-1] <= values else max(values // _SMALL_TABLE_HEAD, 1)
    density = counts.share / np.diff(counts.first_rank)
    is_head = (density >= _RELIABLE_COUNT / counts.samples) & (last_rank <= head_ranks)
    kept = int(np.argmin(np.append(is_head, False)))  # groups of the head; rank 1 is always one
    knots = counts.first_rank[: kept + 1].astype(np.float64)
    mass = counts.missing + np.append(0.0, np.cumsum(counts.share[:kept]))
    if knots[-1] <= values and mass[-1] < 1.0:
        tail_knots, tail_mass = _power_law(knots[-1], values + 1.0, float(density[kept - 1]), 1.0 - mass[-1])
        mass = np.append(mass, mass[-1] + tail_mass)
        knots = np.append(knots, tail_knots)
    mass[-1] = 1.0
    if counts.missing:
        knots, mass = np.append(0.0, knots), np.append(0.0, mass)
    return np.interp(np.linspace(0.0, 1.0, slots + 1), mass, knots)


def _power_law(
    begin: float, end: float, density: float, total: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return knots in (begin, end] and the mass up to each of `density * (x / begin) ** -a`, a such that all
    is `total`.

    The exponent a is at least 0: where even a constant density is too small, it is raised.
    """
    knots = np.geomspace(begin, end, _TAIL_KNOTS + 1)[1:]
    log_ratio = np.log(knots / begin)

    def mass(exponent: float) -> NDArray[np.float64]:
        power = 1.0 - exponent
        return density * begin * (np.expm1(power * log_ratio) / power if power else log_ratio)

    low, high = 0.0, _MAX_EXPONENT
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        if mass(middle)[-1] > total:
            low = middle
        else:
            high = middle
    found = mass(high)
    return knots, found * (total / found[-1])
