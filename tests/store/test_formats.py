"""Rows of every dtype and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_torch
from store_cases import flip, read_rows

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError, NoCheckpointError, SchemaMismatchError
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    StoredRows,
    TableSchema,
    verify,
)
from cpr_native.store.schema import OPTIMIZERS

DTYPES = ("float32", "float16", "bfloat16", "float64")


def arrays(schema: CollectionSchema, seed: int) -> dict[str, SegmentPart]:
    """All rows of every table, of random bits."""
    random = np.random.default_rng(seed)
    parts = {}
    for table in schema.tables:
        shape = table.state_shape(table.rows)
        bits = random.integers(
            0, 256, (table.rows, table.dim * np.dtype(table.weight_array).itemsize), np.uint8
        )
        parts[table.name] = SegmentPart(
            shard=0,
            table=table.name,
            rows=np.arange(table.rows),
            weight=bits.view(table.weight_array),
            state=None if shape is None else random.random(shape, np.float32),
            count=np.arange(table.rows, dtype=np.uint32),
        )
    return parts


class Taken:
    """A sink that keeps copies."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[Any, ...]] = {}

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            self.rows[each.table] = (found.rows, found.weight, found.state, each.priority)


def schema_of(optimizer: str, dtypes: tuple[str, ...], columns: int | None = None) -> CollectionSchema:
    """Tables of odd rows and dims: nothing is aligned by luck."""
    tables = tuple(
        TableSchema(
            name=f"t{i}",
            rows=3 + 2 * i,
            dim=3 + i,
            init_min=0.0,
            init_max=1.0,
            dtype=dtype,
            state_columns=columns,
        )
        for i, dtype in enumerate(dtypes)
    )
    return CollectionSchema(tables=tables, optimizer=optimizer)


CASES = [
    *((optimizer, DTYPES[:3], None) for optimizer in OPTIMIZERS),
    ("none", DTYPES, None),
    ("none", DTYPES, 1),
    ("none", DTYPES, 5),
]


def saved(path: Path, schema: CollectionSchema, seed: int = 1) -> dict[str, SegmentPart]:
    parts = arrays(schema, seed)
    with (
        CheckpointStore(path).writer(schema, Placement.contiguous(schema, 1)) as writer,
        writer.begin("base", step=1, samples=1) as save,
    ):
        for part in parts.values():
            save.add(part)
        save.commit({})
    return parts


@pytest.mark.parametrize(("optimizer", "dtypes", "columns"), CASES)
def test_every_dtype_and_state_comes_back(
    tmp_path: Path, optimizer: str, dtypes: tuple[str, ...], columns: int | None
) -> None:
    schema = schema_of(optimizer, dtypes, columns)
    parts = saved(tmp_path, schema)
    assert verify(tmp_path) == []
    point = CheckpointStore(tmp_path).latest(schema=schema)
    sink = Taken()
    point.plan().apply(sink)
    for name, part in parts.items():
        rows, weight, state, priority = sink.rows[name]
        assert rows.tolist() == part.rows.tolist()
        assert (weight.dtype, weight.tobytes()) == (part.weight.dtype, part.weight.tobytes())
        assert (state is None) == (part.state is None)
        if part.state is not None:
            assert (state.shape, state.tobytes()) == (part.state.shape, part.state.tobytes())
        assert not priority


def test_safetensors_of_torch_opens_every_dtype(tmp_path: Path) -> None:
    parts = saved(tmp_path, schema_of("none", DTYPES, 2))
    (segment,) = (tmp_path / "shards/0/segments").iterdir()
    tensors = load_torch(segment)
    for (name, part), dtype in zip(parts.items(), DTYPES, strict=True):
        tensor = tensors[f"{name}.weight"]
        assert tensor.dtype == getattr(torch, dtype)
        assert tensor.view(torch.uint8).numpy().tobytes() == part.weight.tobytes()
        assert tuple(tensors[f"{name}.state"].shape) == (len(part.rows), 2)


def test_another_dtype_or_state_in_a_segment_is_refused(tmp_path: Path) -> None:
    schema = schema_of("none", ("bfloat16",), 2)
    saved(tmp_path, schema)
    (record,) = (planned.record for planned in CheckpointStore(tmp_path).latest().plan().segments)
    path = tmp_path / "shards/0/segments" / record.name
    for field, value, message in (
        ("dtype", "float16", r"'t0.weight': expected F16 of shape \[3, 3\], got BF16 of \[3, 3\]"),
        ("state_columns", 1, r"'t0.state': expected F32 of shape \[3\], got F32 of \[3, 2\]"),
        ("state_columns", 3, r"'t0.state': expected F32 of shape \[3, 3\], got F32 of \[3, 2\]"),
        ("state_columns", 0, r"does not name: \['t0.state'\]"),
        ("dim", 6, r"'t0.weight': expected BF16 of shape \[3, 6\]"),
    ):
        other = replace(schema, tables=(replace(schema.tables[0], **{field: value}),))  # type: ignore[arg-type]
        with pytest.raises(CorruptionError, match=f"{path.name}: .*{message}"):
            read_rows(path, record, other, Placement.contiguous(other, 1), 0)


def test_parts_of_another_dtype_or_state_are_refused(tmp_path: Path) -> None:
    schema = schema_of("adam", ("bfloat16",))
    placement = Placement.contiguous(schema, 1)
    part = arrays(schema, 1)["t0"]
    assert part.state is not None
    for changes, error, message in (
        ({"weight": part.weight.view(np.float16)}, TypeError, "weight: expected dtype uint16, got float16"),
        ({"state": part.state[:, :3]}, ValueError, r"state: expected shape \(3, 6\), got \(3, 3\)"),
        ({"state": part.state[:, 0]}, ValueError, r"state: expected shape \(3, 6\), got \(3,\)"),
        ({"state": part.state.astype(np.float64)}, TypeError, "state: expected dtype float32"),
        ({"state": None}, ValueError, "state: expected shape .*got None"),
    ):
        with pytest.raises(error, match=message):
            replace(part, **changes).check(schema, placement)
    saved(tmp_path, schema)
    with pytest.raises(SchemaMismatchError, match="dtype: expected float16, got bfloat16"):
        CheckpointStore(tmp_path).writer(schema_of("adam", ("float16",)), placement)


def test_v22_every_damaged_byte_of_half_precision_rows_with_state_is_found(tmp_path: Path) -> None:
    saved(tmp_path, schema_of("adam", ("bfloat16",)))
    (segment,) = (tmp_path / "shards/0/segments").iterdir()
    for at in range(segment.stat().st_size):
        flip(segment, at)
        with pytest.raises(NoCheckpointError, match=segment.name):
            CheckpointStore(tmp_path).latest()
        flip(segment, at)
    assert verify(tmp_path) == []


def test_a_commit_that_gives_a_row_twice_is_refused(tmp_path: Path) -> None:
    schema = schema_of("sgd", ("float32",))
    part = arrays(schema, 1)["t0"]
    with (
        CheckpointStore(tmp_path).writer(schema, Placement.contiguous(schema, 1)) as writer,
        writer.begin("base", step=1, samples=1) as save,
    ):
        save.add(replace(part, rows=np.array([0, 2, 2])))
        save.commit({})
    assert any("'t0': 1 rows are given twice" in problem for problem in verify(tmp_path))
    with pytest.raises(NoCheckpointError, match="given twice"):
        CheckpointStore(tmp_path).latest()


def test_rows_are_marked_once_or_not_at_all() -> None:
    seen = np.zeros(2, np.uint8)
    rows = np.array([12, 10, 12], np.int64)
    assert _native.mark_rows(describe(rows), 10, 20, describe(seen)) == 2
    assert _native.mark_rows(describe(rows), 10, 20, describe(seen)) == 0
    assert seen.tolist() == [0b101, 0]
    assert _native.mark_rows(describe(np.array([19, 18])), 10, 20, describe(seen)) == 2
    assert np.unpackbits(seen, count=10, bitorder="little").tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 1, 1]
    for row in (9, 20, -(2**63), 2**63 - 1):
        outside = np.array([11, row], np.int64)
        with pytest.raises(IndexError, match=r"expected rows of \[10, 20\), got"):
            _native.mark_rows(describe(outside), 10, 20, describe(seen))
    assert seen.tolist() == [0b101, 0b11]
    with pytest.raises(ValueError, match="seen: expected shape"):
        _native.mark_rows(describe(rows), 10, 30, describe(seen))
