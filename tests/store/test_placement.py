"""The placement that balances tables of few rows: every row once, every shard about as full, exact JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.errors import SchemaMismatchError
from cpr_native.store import (
    CollectionSchema,
    Placement,
    TableSchema,
    loads,
    rows_staggered,
    whole_tables,
)


def schema_of(*shapes: tuple[int, int]) -> CollectionSchema:
    tables = [
        TableSchema(name=f"t{i}", rows=rows, dim=dim, init_min=0.0, init_max=0.0)
        for i, (rows, dim) in enumerate(shapes)
    ]
    return CollectionSchema(tables=tuple(tables), optimizer="none")


def numbers_of(schema: CollectionSchema, placement: Placement) -> list[int]:
    """How many numbers each shard holds."""
    ranges = [
        [placement.row_range(schema, table.name, shard) for table in schema.tables]
        for shard in range(placement.shards)
    ]
    return [
        sum((end - begin) * table.dim for (begin, end), table in zip(of_shard, schema.tables, strict=True))
        for of_shard in ranges
    ]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 12))
def test_every_row_lies_in_one_shard_where_the_rule_says(shapes: list[tuple[int, int]], shards: int) -> None:
    schema = schema_of(*shapes)
    placement = Placement.balanced(schema, shards)
    placement.check_covers(schema)
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement
    for table in schema.tables:
        first, spread = placement.shard_rows(schema, table.name)  # type: ignore[misc]
        found: dict[int, int] = {}
        for shard in range(shards):
            begin, end = placement.row_range(schema, table.name, shard)
            assert 0 <= begin <= end <= table.rows
            found |= dict.fromkeys(range(begin, end), shard)
        assert found == {row: first + row * spread // table.rows for row in range(table.rows)}
        held = np.bincount(list(found.values()), minlength=shards)[first : first + spread]
        assert held.max() - held.min() <= 1


def test_each_shard_of_a_small_model_holds_about_as_much() -> None:
    """Weights and biases of six layers of one size, each one block."""
    schema = schema_of(*[(1, 1024), (1, 32)] * 6)
    shards = 3
    assert numbers_of(schema, Placement.contiguous(schema, shards)) == [6 * 1056, 0, 0]
    assert numbers_of(schema, Placement.balanced(schema, shards)) == [2 * 1056] * shards


def test_each_shard_of_rows_holds_about_as_much() -> None:
    schema = schema_of((10, 784), (1, 10), (300, 100), (1, 300), (7, 300), (1, 7))
    for shards in (2, 3, 4, 8):
        held = numbers_of(schema, Placement.balanced(schema, shards))
        assert max(held) <= 1.15 * sum(held) / shards
        assert min(held) >= 0.85 * sum(held) / shards


def test_what_cannot_be_is_refused() -> None:
    schema = schema_of((3, 2), (9, 1))
    placement = Placement.balanced(schema, 4)
    assert placement.to_json() == {"strategy": "balanced_rows", "shards": 4, "first": {"t0": 0, "t1": 0}}
    with pytest.raises(ValueError, match="'t0': 3 rows from shard 2 on go beyond 4 shards"):
        replace(placement, first={"t0": 2, "t1": 0}).check_covers(schema)
    with pytest.raises(ValueError, match=r"placement first: expected the tables \['t0', 't1'\]"):
        replace(placement, first={"t0": 0}).check_covers(schema)
    with pytest.raises(ValueError, match="balanced_rows: expected first alone"):
        replace(placement, blocks={"t0": 3})
    with pytest.raises(ValueError, match="contiguous_rows: expected blocks alone"):
        Placement(shards=2, blocks={"t0": 1}, first={"t0": 1})
    broken: list[Any] = [{"first": []}, {"first": {"t0": -1, "t1": 0}}, {"blocks": {}}, {"strategy": []}]
    for change in broken:
        with pytest.raises((ValueError, TypeError)):
            Placement.from_json({**placement.to_json(), **change})


def test_another_placement_is_named() -> None:
    schema = schema_of((3, 2), (9, 1))
    placement = Placement.balanced(schema, 4)
    with pytest.raises(
        SchemaMismatchError, match="dir: strategy: expected balanced_rows, got contiguous_rows"
    ):
        placement.check_same(Placement.contiguous(schema, 4), "dir")
    with pytest.raises(SchemaMismatchError, match="dir: table 't0': first: expected 0, got 1"):
        placement.check_same(replace(placement, first={"t0": 1, "t1": 0}), "dir")


def test_whole_tables_lie_where_they_are_put() -> None:
    schema = schema_of((3, 2), (9, 1), (1, 1))
    placement = Placement(shards=3, strategy="table_wise", first={"t0": 2, "t1": 0, "t2": 2})
    placement.check_covers(schema)
    assert Placement.from_json(json.loads(placement.json_text)) == placement
    held = [[placement.row_range(schema, t.name, shard) for t in schema.tables] for shard in range(3)]
    assert [[end - begin for begin, end in ranges] for ranges in held] == [[0, 9, 0], [0, 0, 0], [3, 0, 1]]
    assert [placement.shard_rows(schema, t.name) for t in schema.tables] == [(2, 1), (0, 1), (2, 1)]
    with pytest.raises(ValueError, match="'t1': 9 rows from shard 3 on go beyond 3 shards"):
        replace(placement, first={"t0": 0, "t1": 3, "t2": 0}).check_covers(schema)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=6), st.integers(1, 12))
def test_staggered_rows_lie_in_one_shard_each_where_the_rule_says(
    shapes: list[tuple[int, int]], shards: int
) -> None:
    schema = schema_of(*shapes)
    placement = rows_staggered(schema, shards)
    placement.check_covers(schema)
    assert Placement.from_json(json.loads(placement.json_text)) == placement
    for table in schema.tables:
        spread, first = min(shards, table.rows), placement.first[table.name]
        found: list[tuple[int, int]] = []
        for shard in range(shards):
            begin, end = placement.row_range(schema, table.name, shard)
            found += [(row, shard) for row in range(begin, end)]
        assert sorted(found) == [
            (row, (first + row * spread // table.rows) % shards) for row in range(table.rows)
        ]
    with pytest.raises(ValueError, match="expected a collection for each shard"):
        placement.shard_rows(schema, "t0")
    with pytest.raises(ValueError, match=rf"shard {shards} of {shards}"):
        replace(placement, first={**placement.first, "t0": shards}).check_covers(schema)


def test_hot_first_rows_are_spread() -> None:
    """26 tables of one size whose row 0 stands for missing values: in blocks from shard 0 on it is hot."""
    schema = schema_of(*[(1000, 16)] * 26)
    accesses = {table.name: np.ones(1000, np.int64) for table in schema.tables}
    for number, counts in enumerate(accesses.values()):
        counts[0] = 200 + 20 * number
    contiguous = loads(schema, Placement.contiguous(schema, 8), accesses)
    assert contiguous.accesses.max() > 0.35
    for given_accesses in (accesses, None):
        spread = loads(schema, rows_staggered(schema, 8, given_accesses), accesses)
        assert spread.accesses.max() < 0.16
        assert np.ptp(spread.bytes) < 1e-9
        assert spread.accesses.sum() == pytest.approx(1)


def test_tables_of_very_different_use_are_spread() -> None:
    schema = schema_of((5000, 8), (4, 8), (40, 8), (300, 64), (5000, 8), (7, 8))
    accesses = {f"t{i}": np.zeros(t.rows, np.int64) for i, t in enumerate(schema.tables)}
    for name, where, count in (("t0", 0, 900), ("t1", 3, 900), ("t3", 299, 900), ("t4", 0, 300)):
        accesses[name][where] = count
    found = loads(schema, rows_staggered(schema, 4, accesses), accesses)
    assert found.accesses.max() <= 0.301  # three rows of 0.3, and they can't be cut
    assert found.bytes.max() < 0.27


def test_whole_tables_are_spread_by_bytes_and_accesses() -> None:
    rng = np.random.default_rng(1)
    schema = schema_of(*[(int(rows), 8) for rows in rng.integers(10, 400, 40)])
    accesses = {t.name: rng.integers(0, 50, t.rows) for t in schema.tables}
    placement = whole_tables(schema, 4, accesses)
    placement.check_covers(schema)
    found = loads(schema, placement, accesses)
    assert found.bytes.max() < 0.28
    assert found.accesses.max() < 0.28
    assert whole_tables(schema_of((3, 1)), 1).first == {"t0": 0}


def test_accesses_that_do_not_fit_are_refused() -> None:
    schema = schema_of((3, 1), (4, 1))
    with pytest.raises(ValueError, match=r"expected some of the tables \['t0', 't1'\], got \['t2'\]"):
        rows_staggered(schema, 2, {"t2": np.ones(3, np.int64)})
    with pytest.raises(ValueError, match=r"table 't1': expected \[4\] counts of at least 0, got \[3\]"):
        whole_tables(schema, 2, {"t1": np.ones(3, np.int64)})
