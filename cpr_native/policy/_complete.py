"""Policies whose saves are complete: everything, or everything that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cpr_native._native import Selection
from cpr_native.overhead import Plan, Recovery
from cpr_native.policy._contract import (
    Ranking,
    SaveKind,
    Table,
    check_fractions,
    exact_selections,
    prioritised_tables,
)


@dataclass(frozen=True, kw_only=True)
class Full:
    """Save everything at full recovery's optimal interval; a failure sends the whole job back."""

    name: ClassVar[str] = "full"
    recovery: ClassVar[Recovery] = "full"
    fraction: ClassVar[float] = 1.0

    def interval_hours(self, plan: Plan) -> float:
        """Return `sqrt(2*O_save*T_fail)`, at most the job's length."""
        return plan.full_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "base"."""
        return "base"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return all rows (base) or the dirty ones (delta)."""
        return exact_selections(tables, kind)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Save the rows that changed since the last save, without limit.

    `recovery`: "full" recovers like `Full`, at its interval; "partial" sends only failed shards back, to the
    newest save, and saves every `interval_fraction` * T_save. Each `base_every`-th save takes everything,
    which bounds the chain that a restore reads. The planner counts a save as one of everything: it does not
    know how many rows change. Raises ValueError for `base_every` below 1, another `recovery`,
    `interval_fraction` outside (0, 1], and one other than 1 under full recovery.
    """

    base_every: int = 32
    recovery: Recovery = "full"
    interval_fraction: float = 1.0
    fraction: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.base_every < 1:
            raise ValueError(f"Delta: base_every must be at least 1, got {self.base_every}")
        if self.recovery not in ("full", "partial"):
            raise ValueError(f"Delta: recovery must be 'full' or 'partial', got {self.recovery!r}")
        check_fractions(self, interval_fraction=self.interval_fraction)
        if self.recovery == "full" and self.interval_fraction != 1:
            raise ValueError(
                "Delta: interval_fraction is of the interval of partial recovery; full recovery has its own "
                f"and takes 1, got {self.interval_fraction}"
            )

    @property
    def name(self) -> str:
        """The name in results, "delta" or "delta_partial"."""
        return "delta" if self.recovery == "full" else "delta_partial"

    def interval_hours(self, plan: Plan) -> float:
        """Return `sqrt(2*O_save*T_fail)`, or the fraction of `2*PLS*N*T_fail`, within the job's length."""
        if self.recovery == "full":
            return plan.full_interval_hours
        return self.interval_fraction * plan.partial_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "delta", or "base" for each `base_every`-th save."""
        return "base" if (number + 1) % self.base_every == 0 else "delta"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return all rows (base) or the dirty ones (delta)."""
        return exact_selections(tables, kind)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Save everything at the interval of the target PLS; only failed shards go back (CPR-vanilla).

    `small_tables_fraction` r: the tables outside of the largest with `row_share` of all rows are saved every
    r*T_save too, whole, as a priority policy of that fraction saves them: the control of what that is worth.
    1/r is rounded to a whole number. The planner counts the saves of everything alone. Raises ValueError for
    values outside (0, 1].
    """

    small_tables_fraction: float | None = None
    row_share: float = 0.99
    recovery: ClassVar[Recovery] = "partial"
    fraction: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_fractions(self, row_share=self.row_share)
        if self.small_tables_fraction is not None:
            check_fractions(self, small_tables_fraction=self.small_tables_fraction)

    @property
    def name(self) -> str:
        """The name in results, "partial" or "partial_small"."""
        return "partial" if self.small_tables_fraction is None else "partial_small"

    @property
    def _base_every(self) -> int:
        return 1 if self.small_tables_fraction is None else round(1 / self.small_tables_fraction)

    def interval_hours(self, plan: Plan) -> float:
        """Return `2*PLS*N*T_fail`, at most the job's length; r of it with small tables in between."""
        return plan.partial_interval_hours / self._base_every

    def kind(self, number: int) -> SaveKind:
        """Return "base"; "priority" for the saves of small tables in between."""
        return "base" if (number + 1) % self._base_every == 0 else "priority"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return all rows (base), the dirty ones (delta), or all rows of the small tables (priority)."""
        if kind != "priority" or self.small_tables_fraction is None:
            return exact_selections(tables, kind)
        large = set(prioritised_tables(tables, self.row_share))
        return [Selection.none() if index in large else Selection.all() for index in range(len(tables))]
