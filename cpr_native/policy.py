"""Save policies: which rows a save takes, how often one is due, and how a failure is recovered.

A policy is a frozen description without state; the recovery manager asks it. A new one needs the members of
`Policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from cpr_native._native import Selection
from cpr_native.overhead import Plan, Recovery

SaveKind = Literal["base", "delta", "priority"]


class Table(Protocol):
    """What a policy reads of a table: its number of rows."""

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        ...


@runtime_checkable
class Policy(Protocol):
    """What to save, how often, and how to recover."""

    @property
    def name(self) -> str:
        """The name in results."""
        ...

    @property
    def recovery(self) -> Recovery:
        """How a failure is recovered."""
        ...

    @property
    def fraction(self) -> float:
        """The fraction of the rows that a save takes; below 1 for priority policies only."""
        ...

    def interval_hours(self, plan: Plan) -> float:
        """Return the hours between saves."""
        ...

    def kind(self, number: int) -> SaveKind:
        """Return the kind of the due save `number`, from 0."""
        ...

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return what a save of `kind` takes of each table; ValueError for a kind it cannot save."""
        ...


def clears_dirty(kind: SaveKind) -> bool:
    """Return whether a commit of `kind` clears the dirty bits of its rows; priority alone does not."""
    return kind != "priority"


def exact_selections(tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
    """Return the rows of a `base` (all) or `delta` (dirty) save; raises ValueError for `priority`."""
    if kind == "priority":
        raise ValueError("kind 'priority' needs a policy that ranks rows (Mfu or Ssu), got one that does not")
    return [Selection.all() if kind == "base" else Selection.dirty() for _ in tables]


def prioritised_tables(tables: Sequence[Table], row_share: float = 0.99) -> list[int]:
    """Return the indices, ascending, of the largest tables that together hold `row_share` of all rows.

    Among tables of one size the earlier comes first. The paper prioritises the 7 largest of 26 tables.
    """
    wanted = row_share * sum(table.num_embeddings for table in tables)
    chosen: list[int] = []
    rows = 0
    for index in sorted(range(len(tables)), key=lambda i: (-tables[i].num_embeddings, i)):
        if rows >= wanted:
            break
        chosen.append(index)
        rows += tables[index].num_embeddings
    return sorted(chosen)


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

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return all rows (base) or the dirty ones (delta)."""
        return exact_selections(tables, kind)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Save the rows that changed since the last save; recover like `Full`.

    Each `base_every`-th save takes everything, which bounds the chain that a restore reads. Raises ValueError
    for `base_every` below 1.
    """

    base_every: int = 32
    name: ClassVar[str] = "delta"
    recovery: ClassVar[Recovery] = "full"
    fraction: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.base_every < 1:
            raise ValueError(f"Delta: base_every must be at least 1, got {self.base_every}")

    def interval_hours(self, plan: Plan) -> float:
        """Return `sqrt(2*O_save*T_fail)`, at most the job's length."""
        return plan.full_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "delta", or "base" for each `base_every`-th save."""
        return "base" if (number + 1) % self.base_every == 0 else "delta"

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return all rows (base) or the dirty ones (delta)."""
        return exact_selections(tables, kind)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Save everything at the interval of the target PLS; only failed shards go back (CPR-vanilla)."""

    name: ClassVar[str] = "partial"
    recovery: ClassVar[Recovery] = "partial"
    fraction: ClassVar[float] = 1.0

    def interval_hours(self, plan: Plan) -> float:
        """Return `2*PLS*N*T_fail`, at most the job's length."""
        return plan.partial_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "base"."""
        return "base"

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return all rows (base) or the dirty ones (delta)."""
        return exact_selections(tables, kind)


@dataclass(frozen=True, kw_only=True)
class _Priority:
    """Save the fraction r of the rows that matter most every r*T_save; only failed shards go back.

    The fraction holds for the largest tables with `row_share` of all rows; the other tables are saved whole
    each time. Raises ValueError for `fraction` or `row_share` outside (0, 1].
    """

    fraction: float = 0.125
    row_share: float = 0.99
    recovery: ClassVar[Recovery] = "partial"

    def __post_init__(self) -> None:
        for name in ("fraction", "row_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{type(self).__name__}: {name} must be in (0, 1], got {getattr(self, name)}"
                )

    def interval_hours(self, plan: Plan) -> float:
        """Return `r * 2*PLS*N*T_fail`, with T_save at most the job's length."""
        return self.fraction * plan.partial_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "priority"."""
        return "priority"

    def _selections(
        self, tables: Sequence[Table], kind: SaveKind, choose: Callable[[int], Selection]
    ) -> list[Selection]:
        if kind != "priority":
            return exact_selections(tables, kind)
        ranked = set(prioritised_tables(tables, self.row_share))
        return [
            choose(max(1, int(self.fraction * table.num_embeddings))) if index in ranked else Selection.all()
            for index, table in enumerate(tables)
        ]


@dataclass(frozen=True, kw_only=True)
class Mfu(_Priority):
    """Save the most frequently used rows since their last save (CPR-MFU)."""

    name: ClassVar[str] = "mfu"

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return the `fraction` most used rows of each prioritised table and all rows of the others."""
        return self._selections(tables, kind, Selection.most_used)


@dataclass(frozen=True, kw_only=True)
class Ssu(_Priority):
    """Save the rows in the list of sub-sampled used rows (CPR-SSU).

    The list holds the fraction that the tables' trackers were built with; `fraction` must be the same.
    """

    name: ClassVar[str] = "ssu"

    def selections(self, tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
        """Return the listed rows of each prioritised table and all rows of the others."""
        return self._selections(tables, kind, lambda rows: Selection.sampled())
