"""What snapshots may select, and how to tell that they took the rows they should."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, Selection

PRIORITY = 8  # the most used eighth of the rows, as in the CPR paper
_COUNT_BUCKET, _DRIFT_BUCKET = 1.125, 1.25  # widths of the widest buckets of both histograms


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A selection of a table's rows; `tracker` is read before `begin`, `check` gets it and the rows taken."""

    select: Callable[[int], Selection]
    clears_dirty: bool
    tracker: Callable[[Collection], NDArray[Any]]
    check: Callable[[NDArray[Any], NDArray[np.int64]], None]


def _exactly(wanted: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    assert len(rows)
    assert np.array_equal(np.sort(rows), wanted)


def _largest(values: NDArray[Any], rows: NDArray[np.int64], *, bucket: float) -> None:
    """The largest values, as far as a bucket tells them apart; rows of the boundary bucket go by a hash."""
    quota = len(values) // PRIORITY
    rest = np.ones(len(values), np.bool_)
    rest[rows] = False
    assert 0 < len(rows) <= quota + 6 * math.sqrt(quota)
    assert values[rest].max() <= values[rows].min() * bucket


RULES = {
    "delta": Rule(
        select=lambda rows: Selection.dirty(),
        clears_dirty=True,
        tracker=lambda engine: np.flatnonzero(engine.dirty(0)),
        check=_exactly,
    ),
    "mfu": Rule(
        select=lambda rows: Selection.most_used(rows // PRIORITY),
        clears_dirty=False,
        tracker=lambda engine: engine.counts(0),
        check=partial(_largest, bucket=_COUNT_BUCKET),
    ),
    "ssu": Rule(
        select=lambda rows: Selection.sampled(),
        clears_dirty=False,
        tracker=lambda engine: engine.sampled_rows(0),
        check=_exactly,
    ),
    "drift": Rule(
        select=lambda rows: Selection.most_drifted(rows // PRIORITY),
        clears_dirty=False,
        tracker=lambda engine: engine.drift(0),
        check=partial(_largest, bucket=_DRIFT_BUCKET),
    ),
}
