"""Which shard has which rows; written into every manifest, compared at open."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpr_native.errors import SchemaMismatchError
from cpr_native.store.checks import check_count, check_text, exact_fields
from cpr_native.store.schema import CollectionSchema, json_text

# What a placement says of each table, by its strategy.
_PLACED_BY = {
    "contiguous_rows": "blocks",
    "balanced_rows": "first",
    "table_wise": "first",
    "staggered_rows": "first",
}
# Rows per shard; or the first shard and how many have the table's rows between them.
ShardRows = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which shard holds which rows: of every table one range a shard, which may be empty.

    "contiguous_rows": shard i holds the i-th block of rows of every table. `blocks` maps each table to its
    block size in rows; the last block may be short and blocks past the end are empty. TorchRec's row-wise
    sharding is ceil(rows / shards).

    "balanced_rows": the rows of a table are spread evenly over all shards or, where it has fewer rows than
    there are shards, over as many, from shard `first[table]` on: row r of n lies in shard
    `first + r * min(shards, n) // n`.

    "table_wise": all rows of a table lie in shard `first[table]`.

    "staggered_rows": as "balanced_rows", but around the end: row r of n lies in shard
    `(first + r * min(shards, n) // n) % shards`. So the first rows of tables need not share a shard, though
    each table is spread over all. Of shards with a collection each.
    """

    shards: int
    blocks: Mapping[str, int] = field(default_factory=dict)
    strategy: str = "contiguous_rows"
    first: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy not in _PLACED_BY:
            raise ValueError(f"placement strategy: expected one of {list(_PLACED_BY)}, got {self.strategy!r}")
        check_count("placement shards", self.shards, 1)
        for name in _PLACED_BY.values():
            object.__setattr__(self, name, dict(getattr(self, name)))
        for name, number in (*self.blocks.items(), *self.first.items()):
            check_text("placement table", name)
            check_count(f"placement {self._field} of table {name!r}", number, int(self._field == "blocks"))
        if self.first if self._field == "blocks" else self.blocks:
            raise ValueError(f"placement {self.strategy}: expected {self._field} alone, got {self}")

    def _spread(self, rows: int) -> int:
        """Returns how many shards, from its first on, have the rows of a table."""
        return 1 if self.strategy == "table_wise" else min(self.shards, rows)

    @property
    def _field(self) -> str:
        return _PLACED_BY[self.strategy]

    @property
    def _of_tables(self) -> Mapping[str, int]:
        return self.blocks if self._field == "blocks" else self.first

    @classmethod
    def contiguous(cls, schema: CollectionSchema, shards: int) -> Placement:
        """Returns blocks of ceil(rows / shards) rows for every table of `schema`."""
        check_count("placement shards", shards, 1)
        return cls(shards=shards, blocks={t.name: -(-t.rows // shards) for t in schema.tables})

    @classmethod
    def balanced(cls, schema: CollectionSchema, shards: int) -> Placement:
        """Returns a placement with about as many numbers in each shard, as far as rows are small enough.

        Tables with fewer rows than there are shards, the longest rows first, go where the fullest of their
        shards is emptiest.
        """
        check_count("placement shards", shards, 1)
        load = np.zeros(shards)
        first = {table.name: 0 for table in schema.tables}
        for table in sorted(schema.tables, key=lambda t: (t.rows < shards, -t.dim)):
            spread = min(shards, table.rows)
            fullest = np.lib.stride_tricks.sliding_window_view(load, spread).max(axis=1)
            start = int(np.argmin(fullest))
            first[table.name] = start
            load[start : start + spread] += table.dim * (table.rows / spread)
        return cls(shards=shards, strategy="balanced_rows", first=first)

    def row_range(self, schema: CollectionSchema, table: str, shard: int) -> tuple[int, int]:
        """Returns the global rows [begin, end) of `table` that `shard` holds; may be empty."""
        if not 0 <= shard < self.shards:
            raise IndexError(f"shard {shard} of {self.shards}")
        rows = schema.table(table).rows
        if self._field == "first":
            spread = self._spread(rows)
            block = shard - self.first[table]
            if self.strategy == "staggered_rows":
                block %= self.shards
            number, end = min(max(block, 0), spread), min(max(block + 1, 0), spread)
            return -(-number * rows // spread), -(-end * rows // spread)
        block = self.blocks[table]
        return min(rows, shard * block), min(rows, (shard + 1) * block)

    def shard_rows(self, schema: CollectionSchema, table: str) -> ShardRows:
        """Returns where the rows of `table` lie, as `Collection.begin` of the engine takes it.

        Raises ValueError for staggered rows, which no collection holds for several shards.
        """
        if self.strategy == "staggered_rows":
            raise ValueError("placement staggered_rows: expected a collection for each shard")
        if self._field == "first":
            return self.first[table], self._spread(schema.table(table).rows)
        return self.blocks[table]

    def check_covers(self, schema: CollectionSchema) -> None:
        """Raises ValueError unless the tables are those of `schema` and all their rows have a shard."""
        names = sorted(table.name for table in schema.tables)
        if sorted(self._of_tables) != names:
            raise ValueError(
                f"placement {self._field}: expected the tables {names}, got {sorted(self._of_tables)}"
            )
        for table in schema.tables:
            if self.strategy == "staggered_rows":
                if self.first[table.name] >= self.shards:
                    raise ValueError(
                        f"placement of table {table.name!r}: shard {self.first[table.name]} of {self.shards}"
                    )
            elif self._field == "first":
                if self.first[table.name] + self._spread(table.rows) > self.shards:
                    raise ValueError(
                        f"placement of table {table.name!r}: {table.rows} rows from shard "
                        f"{self.first[table.name]} on go beyond {self.shards} shards"
                    )
            elif self.blocks[table.name] * self.shards < table.rows:
                raise ValueError(
                    f"placement of table {table.name!r}: {self.shards} blocks of {self.blocks[table.name]} "
                    f"rows hold fewer than {table.rows} rows"
                )

    def check_same(self, other: Placement, where: str) -> None:
        """Raises SchemaMismatchError naming table and field unless `other`, read from `where`, is equal."""
        for name in ("strategy", "shards"):
            expected, got = getattr(self, name), getattr(other, name)
            if expected != got:
                raise SchemaMismatchError(f"{where}: {name}: expected {expected}, got {got}")
        ours, theirs = self._of_tables, other._of_tables
        what = self._field.removesuffix("s")
        for name in sorted({*ours, *theirs}):
            if theirs.get(name) != ours.get(name):
                raise SchemaMismatchError(
                    f"{where}: table {name!r}: {what}: expected {ours.get(name)}, got {theirs.get(name)}"
                )

    def to_json(self) -> dict[str, Any]:
        """Returns the placement as JSON values; `from_json` gives an equal placement."""
        return {"strategy": self.strategy, "shards": self.shards, self._field: dict(self._of_tables)}

    @functools.cached_property
    def json_text(self) -> str:
        """`to_json` as a manifest has it: every commit has the same."""
        return json_text(self.to_json())

    @classmethod
    def from_json(cls, data: object) -> Placement:
        """Returns the placement that `to_json` wrote; raises ValueError or TypeError for anything else."""
        strategy = data.get("strategy") if isinstance(data, dict) else None
        name = _PLACED_BY.get(strategy, "blocks") if isinstance(strategy, str) else "blocks"
        values = exact_fields("placement", data, ["strategy", "shards", name])
        if not isinstance(values[name], dict):
            raise TypeError(f"placement: {name} must be an object")
        return cls(**values)
