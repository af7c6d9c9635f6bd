"""What there is of a shard's rows, for status, checks and exports."""

from __future__ import annotations

from typing import Any

from cpr_native.cluster.tables import ShardTables


def dirty(tables: ShardTables) -> dict[str, int]:
    """Return the number of dirty rows of each table."""
    homes = [(row_range.name, tables.engine.home(row_range.table)) for row_range in tables.ranges]
    return {name: engine.num_dirty(table) for name, (engine, table) in homes}


def memory(tables: ShardTables) -> dict[str, int]:
    """Return bytes, as `Collection.memory`, of all engines."""
    found: dict[str, int] = {}
    for engine in tables.engines:
        for name, size in engine.memory().items():
            found[name] = found.get(name, 0) + size
    return found


def copies(tables: ShardTables, name: str) -> dict[str, Any]:
    """Return copies of all that there is of a table; no update may run.

    `begin`: global id of its first row; `weight` [n, dim], `state` (None without), `count` uint32 [n],
    `dirty` bool [n], as of `Collection`; of no row, without the others, `begin` is None.
    Raises KeyError.
    """
    found = tables.home(name)
    if found is None:
        return {"begin": None}
    engine, table = found
    return {
        "begin": engine.tables[table].row_offset,
        "weight": engine.weight(table).copy(),
        "state": engine.state(table),
        "count": engine.counts(table),
        "dirty": engine.dirty(table),
    }
