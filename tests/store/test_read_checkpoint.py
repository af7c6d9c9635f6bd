"""The page of the format is enough: a reader written from it alone restores what the package does."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_cases import PLACEMENT, SCHEMA, Model, flip, segment_path

from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    StoredRows,
    TableSchema,
)

SCRIPT = Path(__file__).with_name("read_checkpoint.py")
DATA = Path(__file__).resolve().parent.parent / "data"
spec = importlib.util.spec_from_file_location("read_checkpoint", SCRIPT)
assert spec is not None
assert spec.loader is not None
reader: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)


class Sink:
    """Rows that the package restores, as the reader gives them."""

    def __init__(self, schema: CollectionSchema) -> None:
        self.rows: dict[str, list[Any]] = {
            t.name: [np.zeros((t.rows, t.dim), t.weight_array), None] for t in schema.tables
        }
        for table in schema.tables:
            if (shape := table.state_shape(table.rows)) is not None:
                self.rows[table.name][1] = np.zeros(shape, np.float32)

    def load_rows(self, stored: list[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            self.rows[each.table][0][found.rows] = found.weight
            if found.state is not None:
                self.rows[each.table][1][found.rows] = found.state


def check_same(path: Path) -> int:
    """The reader and the package agree to the bit; returns the step."""
    point = CheckpointStore(path).latest()
    sink = Sink(point.schema)
    point.plan().apply(sink)  # type: ignore[arg-type]
    step, rows, dense = reader.newest(path)
    assert step == point.step
    assert rows.keys() == sink.rows.keys()
    for name, (weight, state) in sink.rows.items():
        assert rows[name][0].tobytes() == weight.tobytes(), name
        assert rows[name][0].shape == weight.shape
        assert (rows[name][1] is None) == (state is None)
        assert state is None or rows[name][1].tobytes() == state.tobytes(), name
    expected = point.dense()
    assert dense.keys() == expected.keys()
    for name, value in expected.items():
        assert (value if isinstance(value, bytes) else value.tobytes()) == bytes(dense[name]), name
    return int(step)


def test_it_imports_nothing_of_the_package() -> None:
    names = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    assert names == {"__future__", "json", "struct", "sys", "pathlib", "numpy"}
    assert reader.crc32c(b"123456789") == "e3069283"


@pytest.mark.parametrize(("name", "step"), [("format_1_0", 1), ("format_2_0", 3)])
def test_old_versions(tmp_path: Path, name: str, step: int) -> None:
    assert check_same(Path(shutil.copytree(DATA / name, tmp_path / name))) == step


def test_base_deltas_priority_commits_and_a_rollback(tmp_path: Path) -> None:
    model, store = Model(), CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "priority", "delta", "priority"):
            model.train_some()
            model.save(writer, kind)
        assert check_same(tmp_path) == 4
        writer.rollback(store.points()[-1])
        assert check_same(tmp_path) == 1
        model.train_some()
        model.save(writer, "delta", model.all_rows())
        assert check_same(tmp_path) == 6


def test_folded_commits_stand_for_those_removed(tmp_path: Path) -> None:
    model, store = Model(), CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "delta", "priority", "priority", "delta"):
            model.train_some()
            model.save(writer, kind)
    folded, error = store.compact(keep=1)
    assert folded
    assert error is None
    assert len(list((tmp_path / "shards/0/segments").iterdir())) < 6
    assert check_same(tmp_path) == 6


def test_what_is_damaged_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta"):
            model.train_some()
            model.save(writer, kind)
    damaged = segment_path(tmp_path, "shards/1", 3)
    flip(damaged)
    assert check_same(tmp_path) == 1
    assert str(damaged) in capsys.readouterr().err


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_weights_as_codes(tmp_path: Path, bits: int, dtype: str) -> None:
    table = TableSchema(name="t", rows=50, dim=33, init_min=0.0, init_max=1.0, dtype=dtype, state_columns=2)
    schema = CollectionSchema(tables=(table,), optimizer="none")
    placement = Placement.balanced(schema, 2)
    random = np.random.default_rng(bits)
    with CheckpointStore(tmp_path).writer(schema, placement, quantise=bits) as writer:
        for kind in ("base", "delta"):
            with writer.begin(kind, step=1, samples=1) as save:
                for shard in range(2):
                    ids = np.arange(*placement.row_range(schema, "t", shard), dtype=np.int64)
                    values = random.normal(size=(len(ids), 33)).astype(np.float32)
                    weight = (
                        (values.view(np.uint32) >> 16).astype(np.uint16)
                        if dtype == "bfloat16"
                        else values.astype(dtype)
                    )
                    if kind == "delta":
                        weight[0] = weight[0, 0]  # a row of one value
                    save.add(
                        SegmentPart(
                            shard=shard,
                            table="t",
                            rows=ids,
                            weight=weight,
                            state=random.random((len(ids), 2), np.float32),
                            count=np.ones(len(ids), np.uint32),
                        )
                    )
                save.commit({"rng": b"1"})
    coded = segment_path(tmp_path, "shards/0", 3).read_bytes()
    assert b"t.weight_range" in coded
    check_same(tmp_path)
