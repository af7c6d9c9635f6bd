"""Policies that save a fraction of the rows at a time: CPR's, SCAR's, the drift's, and two controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

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
from cpr_native.policy._rows import drawn_rows, fitting_blocks, most_changed_rows, next_blocks, next_rows

Distance = Literal["l2", "l1", "tv"]
Pool = Callable[[Sequence[int], Sequence[int]], list[NDArray[np.bool_]]]


@dataclass(frozen=True, kw_only=True)
class _Priority:
    """Save the fraction r of the rows that matter most every r*T_save; only failed shards go back.

    The fraction holds for each of the largest tables with `row_share` of all numbers; the other tables are
    saved whole each time. Raises ValueError for `fraction` or `row_share` outside (0, 1].
    """

    fraction: float = 0.125
    row_share: float = 0.99
    recovery: ClassVar[Recovery] = "partial"

    def __post_init__(self) -> None:
        check_fractions(self, fraction=self.fraction, row_share=self.row_share)

    def interval_hours(self, plan: Plan) -> float:
        """Return `r * 2*PLS*N*T_fail`, with T_save at most the job's length."""
        return self.fraction * plan.partial_interval_hours

    def kind(self, number: int) -> SaveKind:
        """Return "priority"."""
        return "priority"

    def _selections(
        self,
        tables: Sequence[Table],
        kind: SaveKind,
        choose: Callable[[int, int, int], Selection],
        pool: Pool | None = None,
    ) -> list[Selection]:
        """Return `choose(table, rows, quota)` of each prioritised table and all rows of the others.

        `pool(tables, dims)` chooses the rows of those together of which the fraction isn't one row.
        """
        if kind != "priority":
            return exact_selections(tables, kind)
        found = [Selection.all()] * len(tables)
        few = []
        for index in prioritised_tables(tables, self.row_share):
            rows = tables[index].num_embeddings
            if pool is not None and self.fraction * rows < 1:
                few.append(index)
            else:
                found[index] = choose(index, rows, max(1, int(self.fraction * rows)))
        if pool is not None and few:
            for index, mask in zip(few, pool(few, [tables[i].embedding_dim for i in few]), strict=True):
                found[index] = Selection.rows(mask)
        return found


@dataclass(frozen=True, kw_only=True)
class Mfu(_Priority):
    """Save the most frequently used rows since their last save (CPR-MFU)."""

    name: ClassVar[str] = "mfu"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the `fraction` most used rows of each prioritised table and all rows of the others."""
        return self._selections(tables, kind, lambda table, rows, quota: Selection.most_used(quota))


@dataclass(frozen=True, kw_only=True)
class Ssu(_Priority):
    """Save the rows in the list of sub-sampled used rows (CPR-SSU).

    The list holds the fraction that the tables' trackers were built with; `fraction` must be the same.
    """

    name: ClassVar[str] = "ssu"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the listed rows of each prioritised table and all rows of the others."""
        return self._selections(tables, kind, lambda table, rows, quota: Selection.sampled())


@dataclass(frozen=True, kw_only=True)
class Drift(_Priority):
    """Save the rows whose steps since their last save are longest, added up.

    That sum, which the update pass knows for free, is never below the row's distance from what was saved:
    SCAR's measure from above, without its copy of the tables. Prioritised tables need `Trackers(drift=True)`
    and a fused optimizer.
    """

    name: ClassVar[str] = "drift"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the `fraction` most drifted rows of each prioritised table and all rows of the others."""
        return self._selections(tables, kind, lambda table, rows, quota: Selection.most_drifted(quota))


@dataclass(frozen=True, kw_only=True)
class Scar(_Priority):
    """Save the rows farthest from what was last saved of them (SCAR, Qiao et al., ICML 2019).

    `distance`, of the weights: "l2", "l1", or "tv", the total variation between rows that count or weigh
    something (LDA's documents). It needs a copy of the prioritised tables as last saved, in memory, and each
    save reads both while training waits.

    Prioritised tables with fewer than 1 / `fraction` rows, such as whole layers (`attach(blocks="tensors")`),
    are ranked against each other and share one budget: `fraction` of all their numbers. As rows of several
    tables differ in length, what counts there is the distance for its bytes: the squared L2 distance, which
    adds up to the perturbation that a loss would be, or the other distances, over the length. The first row
    that doesn't fit is taken as often as makes saves of that size on average.

    Raises ValueError for another distance.
    """

    distance: Distance = "l2"
    name: ClassVar[str] = "scar"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distance not in get_args(Distance):
            raise ValueError(f"Scar: distance: expected one of {get_args(Distance)}, got {self.distance!r}")

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the `fraction` most changed rows of the prioritised tables and all rows of the others."""

        def pool(few: Sequence[int], dims: Sequence[int]) -> list[NDArray[np.bool_]]:
            power = 2 if self.distance == "l2" else 1
            keys = [
                ranking.changes(table).astype(np.float64) ** power / dim
                for table, dim in zip(few, dims, strict=True)
            ]
            return fitting_blocks(keys, dims, self.fraction, number=ranking.number)

        return self._selections(
            tables,
            kind,
            lambda table, rows, quota: Selection.rows(most_changed_rows(ranking.changes(table), quota)),
            pool,
        )


@dataclass(frozen=True, kw_only=True)
class Random(_Priority):
    """Save a random fraction of the rows: the control of what a priority is worth.

    Which rows is a function of `seed`, the number of the save and the table. Raises ValueError for a
    negative seed.
    """

    seed: int = 0
    name: ClassVar[str] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed < 0:
            raise ValueError(f"Random: seed must be at least 0, got {self.seed}")

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return random rows of the prioritised tables and all rows of the others."""

        def pool(few: Sequence[int], dims: Sequence[int]) -> list[NDArray[np.bool_]]:
            keys = [
                np.random.PCG64((self.seed, ranking.number, table)).random_raw(tables[table].num_embeddings)
                for table in few
            ]
            drawn = [each.astype(np.float64) + 1.0 for each in keys]
            return fitting_blocks(drawn, dims, self.fraction, number=ranking.number)

        def choose(table: int, rows: int, quota: int) -> Selection:
            drawn = drawn_rows(rows, quota, seed=self.seed, number=ranking.number, table=table)
            return Selection.rows(drawn)

        return self._selections(tables, kind, choose, pool)


@dataclass(frozen=True, kw_only=True)
class RoundRobin(_Priority):
    """Save the next fraction of the rows in turn, by row number: the other control.

    Which rows is a function of the number of the save.
    """

    name: ClassVar[str] = "round_robin"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the next rows of the prioritised tables and all rows of the others."""
        return self._selections(
            tables,
            kind,
            lambda table, rows, quota: Selection.rows(next_rows(rows, quota, number=ranking.number)),
            lambda few, dims: next_blocks(
                [tables[table].num_embeddings for table in few], dims, self.fraction, number=ranking.number
            ),
        )
