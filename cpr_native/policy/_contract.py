"""What the recovery manager and a policy ask of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Selection
from cpr_native.overhead import Plan, Recovery

SaveKind = Literal["base", "delta", "priority"]


class Table(Protocol):
    """What a policy reads of a table: its number of rows, and how long they are."""

    @property
    def num_embeddings(self) -> int:
        """Rows of the table."""
        ...

    @property
    def embedding_dim(self) -> int:
        """Numbers of a row."""
        ...


class Ranking(Protocol):
    """What a policy may ask at a save beside the trackers that the engine reads by itself."""

    @property
    def number(self) -> int:
        """Number of this due save, from 0; a save that is not due has that of the next one that is."""
        ...

    def changes(self, table: int) -> NDArray[np.float32]:
        """Return how far each row's weight is from its copy as last saved, by the policy's distance, [rows].

        For prioritised tables of a `Scar` policy only: no other has that copy.
        """
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

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return what a save of `kind` takes of each table; ValueError for a kind it cannot save."""
        ...


def clears_dirty(kind: SaveKind) -> bool:
    """Return whether a commit of `kind` clears the dirty bits of its rows; priority alone does not."""
    return kind != "priority"


def exact_selections(tables: Sequence[Table], kind: SaveKind) -> list[Selection]:
    """Return the rows of a `base` (all) or `delta` (dirty) save; raises ValueError for `priority`."""
    if kind == "priority":
        raise ValueError(
            "kind 'priority' needs a policy that ranks rows (Mfu, Ssu, ...), got one that does not"
        )
    return [Selection.all() if kind == "base" else Selection.dirty() for _ in tables]


def prioritised_tables(tables: Sequence[Table], row_share: float = 0.99) -> list[int]:
    """Return the indices, ascending, of the largest tables that together hold `row_share` of all numbers.

    That is of all rows where they are equally long. Among tables of one size the earlier comes first. The
    paper prioritises the 7 largest of 26 tables.
    """
    sizes = [table.num_embeddings * table.embedding_dim for table in tables]
    wanted = row_share * sum(sizes)
    chosen: list[int] = []
    held = 0
    for index in sorted(range(len(tables)), key=lambda i: (-sizes[i], i)):
        if held >= wanted:
            break
        chosen.append(index)
        held += sizes[index]
    return sorted(chosen)


def check_fractions(policy: object, **fractions: float) -> None:
    """Raise ValueError for the first of `fractions` outside (0, 1], naming `policy` and it."""
    for name, value in fractions.items():
        if not 0 < value <= 1:
            raise ValueError(f"{type(policy).__name__}: {name} must be in (0, 1], got {value}")
