from __future__ import annotations

import json
from dataclasses import replace

import pytest
from store_cases import PLACEMENT, SCHEMA

from cpr_native.errors import SchemaMismatchError
from cpr_native.store import CollectionSchema, Placement, TableSchema


def test_json_round_trip() -> None:
    assert CollectionSchema.from_json(json.loads(json.dumps(SCHEMA.to_json()))) == SCHEMA
    assert Placement.from_json(json.loads(json.dumps(PLACEMENT.to_json()))) == PLACEMENT


@pytest.mark.parametrize(
    ("name", "value"), [("rows", 21), ("dim", 8), ("init_min", -1.0), ("init_max", 0.25), ("name", "other")]
)
def test_another_table_is_refused_by_name_and_field(name: str, value: object) -> None:
    other = replace(SCHEMA, tables=(replace(SCHEMA.tables[0], **{name: value}), *SCHEMA.tables[1:]))
    message = (
        "tables: expected .*'user'.*'other'"
        if name == "name"
        else f"dir: table 'user': {name}: expected .*, got {value}"
    )
    with pytest.raises(SchemaMismatchError, match=message):
        SCHEMA.check_same(other, "dir")


def plain(*tables: TableSchema) -> tuple[TableSchema, ...]:
    """The tables as they are given to a collection: with the state of its optimizer."""
    return tuple(replace(table, state_columns=None) for table in tables)


@pytest.mark.parametrize(("name", "value"), [("optimizer", "sgd"), ("seed", 8), ("initial_state", 0.5)])
def test_another_collection_is_refused_by_field(name: str, value: object) -> None:
    other = replace(SCHEMA, tables=plain(*SCHEMA.tables), **{name: value})
    with pytest.raises(SchemaMismatchError, match=f"dir: {name}: expected"):
        SCHEMA.check_same(other, "dir")


@pytest.mark.parametrize(
    ("optimizer", "columns"),
    [
        ("none", 0),
        ("sgd", 0),
        ("row_wise_adagrad", 1),
        ("adagrad", 4),
        ("adam", 8),
        ("partial_row_wise_adam", 5),
    ],
)
def test_state_of_each_optimizer(optimizer: str, columns: int) -> None:
    schema = replace(SCHEMA, optimizer=optimizer, tables=plain(SCHEMA.tables[0]))
    assert schema.tables[0].state_columns == columns
    assert schema.tables[0].state_shape(3) == {0: None, 1: (3,)}.get(columns, (3, columns))
    assert CollectionSchema.from_json(schema.to_json()) == schema
    if optimizer != "none":
        with pytest.raises(
            ValueError, match=f"'user': state_columns: expected {columns} under {optimizer}, got 7"
        ):
            replace(schema, tables=(replace(schema.tables[0], state_columns=7),))


def test_state_of_a_torch_optimizer_and_other_types() -> None:
    tables = (
        replace(SCHEMA.tables[0], dtype="float64", state_columns=8),
        replace(SCHEMA.tables[1], dtype="bfloat16", state_columns=0),
    )
    schema = CollectionSchema(tables=tables, optimizer="none")
    assert CollectionSchema.from_json(schema.to_json()) == schema
    assert [table.weight_array for table in schema.tables] == ["float64", "uint16"]
    for changes, message in (
        ({"dtype": "float16"}, "'user': dtype: expected float64, got float16"),
        ({"state_columns": 9}, "'user': state_columns: expected 8, got 9"),
    ):
        other = replace(schema, tables=(replace(tables[0], **changes), tables[1]))
        with pytest.raises(SchemaMismatchError, match=message):
            schema.check_same(other, "dir")
    with pytest.raises(ValueError, match="float64: expected optimizer none, got sgd"):
        CollectionSchema(tables=(replace(tables[0], state_columns=None),), optimizer="sgd")


def test_another_placement_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="shards: expected 3, got 4"):
        PLACEMENT.check_same(Placement.contiguous(SCHEMA, 4), "dir")
    with pytest.raises(SchemaMismatchError, match="table 'user': block: expected 7, got 8"):
        PLACEMENT.check_same(replace(PLACEMENT, blocks={**PLACEMENT.blocks, "user": 8}), "dir")
    with pytest.raises(SchemaMismatchError, match="table 'more': block: expected None, got 1"):
        PLACEMENT.check_same(replace(PLACEMENT, blocks={**PLACEMENT.blocks, "more": 1}), "dir")


def test_row_ranges_cover_every_row_once() -> None:
    for shards in (1, 2, 3, 8, 30):
        placement = Placement.contiguous(SCHEMA, shards)
        placement.check_covers(SCHEMA)
        for table in SCHEMA.tables:
            ranges = [placement.row_range(SCHEMA, table.name, shard) for shard in range(shards)]
            assert [row for begin, end in ranges for row in range(begin, end)] == list(range(table.rows))
    with pytest.raises(IndexError, match="shard 3 of 3"):
        PLACEMENT.row_range(SCHEMA, "user", 3)


def test_a_placement_without_all_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="'user': 3 blocks of 6 rows hold fewer than 20"):
        replace(PLACEMENT, blocks={**PLACEMENT.blocks, "user": 6}).check_covers(SCHEMA)
    with pytest.raises(ValueError, match="expected the tables"):
        replace(PLACEMENT, blocks={"user": 7}).check_covers(SCHEMA)


def test_values_are_checked() -> None:
    table = SCHEMA.tables[0]
    for changes, error in (
        ({"rows": 0}, ValueError),
        ({"rows": True}, TypeError),
        ({"dim": 1.0}, TypeError),
        ({"name": ""}, ValueError),
        ({"name": "a\nb"}, ValueError),
        ({"name": "x" * 1025}, ValueError),
        ({"init_min": float("nan")}, ValueError),
        ({"init_max": 1}, TypeError),
        ({"dtype": "float8"}, ValueError),
        ({"dtype": "uint16"}, ValueError),
        ({"state_columns": -1}, ValueError),
        ({"state_columns": 1.0}, TypeError),
    ):
        with pytest.raises(error):
            replace(table, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must differ"):
        replace(SCHEMA, tables=(table, table))
    with pytest.raises(ValueError, match="optimizer"):
        replace(SCHEMA, optimizer="lamb")
    with pytest.raises(ValueError, match="at least one"):
        replace(SCHEMA, tables=())
    with pytest.raises(ValueError, match="strategy"):
        Placement(shards=1, blocks={}, strategy="hashed")
    with pytest.raises(ValueError, match="shards"):
        Placement.contiguous(SCHEMA, 0)


def test_json_must_have_exactly_the_fields() -> None:
    data = SCHEMA.to_json()
    for broken in (
        None,
        [],
        {**data, "more": 1},
        {k: v for k, v in data.items() if k != "seed"},
        {**data, "tables": {}},
    ):
        with pytest.raises((ValueError, TypeError)):
            CollectionSchema.from_json(broken)
    with pytest.raises((ValueError, TypeError)):
        Placement.from_json({**PLACEMENT.to_json(), "blocks": []})


def test_table_lookup() -> None:
    assert SCHEMA.table("tiny") == TableSchema(
        name="tiny", rows=2, dim=3, init_min=0.0, init_max=1.0, dtype="float32", state_columns=1
    )
    with pytest.raises(KeyError):
        SCHEMA.table("none")
