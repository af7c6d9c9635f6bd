"""Placements for a cluster: every shard has about as many bytes and about as many lookups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.store.checks import check_count
from cpr_native.store.placement import Placement
from cpr_native.store.schema import CollectionSchema, TableSchema

Accesses = Mapping[str, NDArray[np.int64]]
Before = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loads:
    """What each shard has of a placement, as shares that add up to 1, float64 [shards].

    `bytes`: of weights and optimizer state; `accesses`: of lookups.
    """

    bytes: NDArray[np.float64]
    accesses: NDArray[np.float64]


def rows_staggered(schema: CollectionSchema, shards: int, accesses: Accesses | None = None) -> Placement:
    """Spread every table over all shards, so that the hot rows of different tables lie in different ones.

    `accesses`: of tables by name, int64 [rows], how often each row was looked up in a sample. Of a table that
    it has not, as many lookups are expected as of another on average, half of them of row 0: missing values
    and frequent ids are often numbered first, and in blocks from shard 0 on it would get most of them.

    A table begins where it keeps the fullest shard lowest: the largest loads are placed first. Raises
    ValueError for accesses that don't fit the tables.
    """
    check_count("placement shards", shards, 1)
    shares = _shares(schema, shards, accesses)
    first: dict[str, int] = {}
    load = np.zeros((2, shards))
    for name in sorted(shares, key=lambda name: -float(shares[name].max())):
        turned = np.stack([np.roll(shares[name], turn, axis=1) for turn in range(shards)])
        first[name] = int(np.argmin(_cost(load + turned)))
        load += turned[first[name]]
    return Placement(shards=shards, strategy="staggered_rows", first=first)


def whole_tables(schema: CollectionSchema, shards: int, accesses: Accesses | None = None) -> Placement:
    """Give each table to one shard: the largest loads first, each to the shard that stays emptiest.

    `accesses` as in `rows_staggered`. For many tables of which none is large. Raises ValueError.
    """
    check_count("placement shards", shards, 1)
    shares = {name: share.sum(axis=1) for name, share in _shares(schema, 1, accesses).items()}
    first: dict[str, int] = {}
    load = np.zeros((2, shards))
    for name in sorted(shares, key=lambda name: -float(shares[name].max())):
        placed = load[None] + shares[name][None, :, None] * np.eye(shards)[:, None, :]
        first[name] = int(np.argmin(_cost(placed)))
        load = placed[first[name]]
    return Placement(shards=shards, strategy="table_wise", first=first)


def loads(schema: CollectionSchema, placement: Placement, accesses: Accesses | None = None) -> Loads:
    """Return what each shard has of `placement`; `accesses` as in `rows_staggered`."""
    before = _accesses_before(schema, accesses)
    found = np.zeros((2, placement.shards))
    for table in schema.tables:
        found += _held(table, schema, placement, before[table.name])
    found /= np.maximum(found.sum(axis=1, keepdims=True), 1e-300)
    return Loads(bytes=found[0], accesses=found[1])


def _cost(load: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how bad loads [choices, 2, shards] are: the fullest shard; of equal ones the sum of squares."""
    fullest: NDArray[np.float64] = load.sum(axis=1).max(axis=1)
    squares: NDArray[np.float64] = (load**2).sum(axis=(1, 2))
    return fullest + 1e-3 * squares


def _row_bytes(table: TableSchema) -> int:
    return table.dim * np.dtype(table.weight_array).itemsize + 4 * (table.state_columns or 0)


def _held(
    table: TableSchema, schema: CollectionSchema, placement: Placement, before: Before
) -> NDArray[np.float64]:
    """Return bytes and lookups of a table in each shard, [2, shards]."""
    ranges = [placement.row_range(schema, table.name, shard) for shard in range(placement.shards)]
    begin, end = np.array(ranges, np.int64).T
    return np.stack([(end - begin) * float(_row_bytes(table)), before(end) - before(begin)])


def _shares(
    schema: CollectionSchema, shards: int, accesses: Accesses | None
) -> dict[str, NDArray[np.float64]]:
    """Return of each table what its blocks have of all bytes and lookups, [2, shards], from shard 0 on."""
    first = {table.name: 0 for table in schema.tables}
    placement = Placement(shards=shards, strategy="staggered_rows", first=first)
    before = _accesses_before(schema, accesses)
    held = {table.name: _held(table, schema, placement, before[table.name]) for table in schema.tables}
    total = np.sum([of.sum(axis=1) for of in held.values()], axis=0)
    return {name: of / np.maximum(total, 1e-300)[:, None] for name, of in held.items()}


def _accesses_before(schema: CollectionSchema, accesses: Accesses | None) -> dict[str, Before]:
    """Return of each table how many lookups rows below a given one have."""
    known = dict(accesses or {})
    names = [table.name for table in schema.tables]
    if set(known) - set(names):
        raise ValueError(f"accesses: expected some of the tables {names}, got {sorted(known)}")
    for name, of in known.items():
        rows = schema.table(name).rows
        if of.shape != (rows,) or of.min() < 0:
            raise ValueError(
                f"accesses of table {name!r}: expected [{rows}] counts of at least 0, got {list(of.shape)}"
            )
    usual = float(np.mean([of.sum(dtype=np.float64) for of in known.values()])) if known else 1.0
    return {
        table.name: _counted(known[table.name]) if table.name in known else _usual(table.rows, usual)
        for table in schema.tables
    }


def _counted(of: NDArray[np.int64]) -> Before:
    sums = np.concatenate([[0.0], np.cumsum(of, dtype=np.float64)])
    return lambda rows: sums[rows]


def _usual(rows: int, lookups: float) -> Before:
    return lambda below: lookups / 2 * ((below > 0) + below / rows)
