"""The paper's list of sub-sampled used rows, to compare with the engine's (CPR, section on SSU)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Selection
from cpr_native.data import ClickBatch
from cpr_native.policy import Ranking, SaveKind, Ssu, Table, prioritised_tables


@dataclass
class PaperList:
    """Per table at most `capacity` different rows; one access of `period` enters; a full list drops any one.

    `capacities`: of each table, 0 for one without a list.
    """

    capacities: Sequence[int]
    period: int = 2
    seed: int = 0
    _accesses: int = 0
    _rows: list[list[int]] = field(default_factory=list)
    _places: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._rows = [[] for _ in self.capacities]
        self._places = [{} for _ in self.capacities]

    def trained(self, batch: ClickBatch) -> None:
        """Take the sampled accesses of a batch, feature-major, one id a bag."""
        bags = len(batch)
        ids = batch.ids.numpy().reshape(-1, bags)
        for table, capacity in enumerate(self.capacities):
            if capacity:
                first = -(self._accesses + table * bags) % self.period
                for row in ids[table, first :: self.period].tolist():
                    self._enter(table, row, capacity)
        self._accesses += ids.size

    def _enter(self, table: int, row: int, capacity: int) -> None:
        rows, places = self._rows[table], self._places[table]
        if row in places:
            return
        if len(rows) < capacity:
            places[row] = len(rows)
            rows.append(row)
            return
        place = int(self._rng.integers(capacity))
        del places[rows[place]]
        rows[place] = row
        places[row] = place

    def mask(self, table: int, rows: int) -> NDArray[np.bool_]:
        """Return which of the `rows` rows of a table are listed."""
        mask = np.zeros(rows, np.bool_)
        mask[self._rows[table]] = True
        return mask

    def forget(self, table: int, begin: int, end: int) -> None:
        """Take rows [begin, end) off the list."""
        self._rows[table] = [row for row in self._rows[table] if not begin <= row < end]
        self._places[table] = {row: place for place, row in enumerate(self._rows[table])}


@runtime_checkable
class Listed(Ranking, Protocol):
    """A ranking that knows the paper's list."""

    def listed(self, table: int) -> NDArray[np.bool_]:
        """Return which rows of a table are listed."""
        ...


@dataclass(frozen=True, kw_only=True)
class PaperSsu(Ssu):
    """SSU with the paper's list in place of the engine's; the study's shadows feed it."""

    period: int = 2
    seed: int = 0
    name: ClassVar[str] = "ssu_paper"

    def selections(self, tables: Sequence[Table], kind: SaveKind, ranking: Ranking) -> list[Selection]:
        """Return the listed rows of each prioritised table and all rows of the others."""
        if kind != "priority":
            return super().selections(tables, kind, ranking)
        assert isinstance(ranking, Listed)
        ranked = set(prioritised_tables(tables, self.row_share))
        return [
            Selection.rows(ranking.listed(index)) if index in ranked else Selection.all()
            for index in range(len(tables))
        ]

    def list_of(self, tables: Sequence[Table]) -> PaperList:
        """Return an empty list for `tables`."""
        ranked = set(prioritised_tables(tables, self.row_share))
        sizes = [
            int(self.fraction * table.num_embeddings) if index in ranked else 0
            for index, table in enumerate(tables)
        ]
        return PaperList(sizes, self.period, self.seed)
