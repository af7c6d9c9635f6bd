"""Histograms of rows: how often they were saved, and how old they were when a failure sent them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Group = Literal["prioritised", "small"]
"""The largest tables that hold 99 % of the rows, and all others (`cpr_native.policy.prioritised_tables`)."""


def _check(what: str, values: Sequence[float], rows: Sequence[int], lookups: Sequence[int]) -> None:
    if not len(values) == len(rows) == len(lookups):
        raise ValueError(
            f"{what}, rows and lookups must be of one length, got {len(values)}, {len(rows)}, {len(lookups)}"
        )
    if list(values) != sorted(set(values)) or min([*values, *rows, *lookups], default=0) < 0:
        raise ValueError(f"{what} must be ascending and no number negative")


@dataclass(frozen=True, kw_only=True)
class RowsSaved:
    """How often the rows of a group of tables were saved in a run, every commit counted.

    Args:
        group: which tables.
        tables: how many.
        times: [n] distinct numbers of commits that held a row, ascending.
        rows: [n] rows that were in so many.
        lookups: [n] lookups of these rows in the training samples.

    Raises:
        ValueError: lengths differ, `times` is not ascending, or a number is negative.
    """

    group: Group
    tables: int
    times: tuple[int, ...]
    rows: tuple[int, ...]
    lookups: tuple[int, ...]

    def __post_init__(self) -> None:
        _check("times", self.times, self.rows, self.lookups)


@dataclass(frozen=True, kw_only=True)
class RowAge:
    """How old the rows were that went back at a failure.

    The age of a row is the training between the failure and the step of which its copy is: the last commit
    that held the row, or the last `base` or `delta`, which leave out only rows without a change. A row that
    no commit has is as old as the job. After a full recovery all rows are of one step.

    Args:
        samples: [n] distinct ages in samples, ascending.
        hours: [n] the same in hours of work.
        rows: [n] rows of that age among those that went back.
        lookups: [n] lookups of these rows until the failure.

    Raises:
        ValueError: lengths differ, an age is not ascending, or a number is negative.
    """

    samples: tuple[int, ...]
    hours: tuple[float, ...]
    rows: tuple[int, ...]
    lookups: tuple[int, ...]

    def __post_init__(self) -> None:
        _check("samples", self.samples, self.rows, self.lookups)
        _check("hours", self.hours, self.rows, self.lookups)
