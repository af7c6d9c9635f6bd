"""Directories as earlier versions of the format wrote them: they are read for ever."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from store_cases import Model, manifest_path, rewrite

from cpr_native.errors import NoCheckpointError
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    RestorePlan,
    StoredRows,
    TableSchema,
    inspect,
    verify,
)

DATA = Path(__file__).parents[1] / "data"
FIRST = CollectionSchema(
    tables=(
        TableSchema(name="user", rows=6, dim=3, init_min=-0.5, init_max=0.5),
        TableSchema(name="item", rows=3, dim=2, init_min=0.0, init_max=1.0),
    ),
    optimizer="row_wise_adagrad",
    seed=7,
    initial_state=0.25,
)
SECOND = CollectionSchema(
    tables=(
        TableSchema(name="user", rows=6, dim=3, init_min=-0.5, init_max=0.5),
        TableSchema(name="item", rows=3, dim=2, init_min=0.0, init_max=1.0, dtype="bfloat16"),
        TableSchema(name="tag", rows=4, dim=1, init_min=0.0, init_max=1.0, dtype="float16"),
    ),
    optimizer="adam",
    seed=7,
)


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A base and a delta as they were written when tables had neither dtype nor state columns."""
    shutil.copytree(DATA / "format_1_0", tmp_path / "first")
    return tmp_path / "first"


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """Base, priority commit, delta, priority commit: steps 1 to 4, before a commit could replace another."""
    shutil.copytree(DATA / "format_2_0", tmp_path / "second")
    return tmp_path / "second"


class Rows:
    """A sink of the second directory's tables."""

    def __init__(self, plan: RestorePlan) -> None:
        self.weight = {t.name: np.zeros((t.rows, t.dim), t.weight_array) for t in SECOND.tables}
        self.state = {t.name: np.zeros((t.rows, 2 * t.dim), np.float32) for t in SECOND.tables}
        plan.apply(self)

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            self.weight[each.table][found.rows] = found.weight
            self.state[each.table][found.rows] = found.state

    def check(self, expected: dict[str, NDArray[Any]], mode: str) -> None:
        for name in self.weight:
            assert self.weight[name].tobytes() == expected[f"{mode}.{name}.weight"].tobytes()
            assert self.state[name].tobytes() == expected[f"{mode}.{name}.state"].tobytes()


def test_the_first_version_is_read(first: Path) -> None:
    assert verify(first) == []
    expected = load_file(DATA / "format_1_0.safetensors")
    store = CheckpointStore(first)
    point = store.latest("exact", schema=FIRST, placement=Placement.contiguous(FIRST, 2))
    assert (point.step, point.kind, point.run_id) == (1, "delta", "before-dtypes")
    assert [(t.dtype, t.state_columns) for t in point.schema.tables] == [("float32", 1)] * 2
    model = Model(seed=9, schema=FIRST, placement=point.placement)
    point.plan().apply(model)
    for name in ("user", "item"):
        assert model.weight[name].tobytes() == expected[f"{name}.weight"].tobytes()
        assert model.state[name].tobytes() == expected[f"{name}.state"].tobytes()


def test_the_second_version_is_read(second: Path) -> None:
    assert verify(second) == []
    expected = load_file(DATA / "format_2_0.safetensors")
    store = CheckpointStore(second)
    exact = store.latest("exact", schema=SECOND, placement=Placement.balanced(SECOND, 2))
    assert (exact.step, exact.samples, exact.kind, exact.run_id) == (3, 24, "delta", "version-2")
    assert (exact.info, exact.engine) == ({"at": 3}, {"learning_rate": 0.5, "step": 3})
    assert exact.manifest.replaces is None
    running = store.latest("running")
    for point, step in ((exact, 3), (running, 4)):
        dense = point.dense()
        assert isinstance(dense["mlp"], np.ndarray)
        assert (dense["mlp"].tolist(), dense["rng"]) == ([step] * 3, b"%d" % step)
        Rows(point.plan()).check(expected, point.mode)


def test_the_first_version_goes_on_in_the_newest(first: Path) -> None:
    store, placement = CheckpointStore(first), Placement.contiguous(FIRST, 2)
    model = Model(seed=9, schema=FIRST, placement=placement)
    with store.writer(FIRST, placement) as writer:
        point = store.latest()
        point.plan().apply(model)
        writer.rollback(point)
        model.train({"user": [0, 5]})
        model.save(writer, "delta")
    assert verify(first) == []
    again = Model(seed=8, schema=FIRST, placement=placement)
    store.latest().plan().apply(again)
    assert again.rows() == model.rows()
    assert {chain.commits[0].sequence for chain in inspect(first).chains} == {1}


def test_a_first_version_with_fields_of_the_second_is_refused(first: Path) -> None:
    for path in (first / "global/manifests").iterdir():
        rewrite(path, lambda m: m["schema"]["tables"][0].update(dtype="float32", state_columns=1))  # type: ignore[index]
    with pytest.raises(NoCheckpointError, match="schema table: expected the fields"):
        CheckpointStore(first).latest()


def test_a_second_version_with_a_field_of_the_third_is_refused(second: Path) -> None:
    rewrite(manifest_path(second, "global", 5), lambda m: m.update(replaces=None))
    point = CheckpointStore(second).latest("running")
    assert point.step == 3
    assert any("manifest: expected the fields" in message for message in point.skipped)
