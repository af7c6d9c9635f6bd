from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import SCHEMA, Model, Rows

from cpr_native.store import CheckpointStore, CollectionSchema, Placement, files, inspect, verify

SMALL = CollectionSchema(tables=SCHEMA.tables[1:], optimizer="row_wise_adagrad")
TWO = Placement.contiguous(SMALL, 2)


def load(store: CheckpointStore, mode: str) -> Rows:
    model = Model(seed=9, schema=SMALL, placement=TWO)
    store.latest(mode).plan().apply(model)  # type: ignore[arg-type]
    return model.rows()


def refuse_global(source: Path, target: Path) -> None:
    if target.parts[-3] == "global":
        raise OSError(28, "No space left on device", str(target))
    os.link(source, target)


OPERATIONS = st.lists(
    st.sampled_from(["base", "delta", "priority", "failed delta", "failed priority", "rollback", "restart"]),
    max_size=9,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(OPERATIONS, st.randoms(use_true_random=False))
def test_any_history_restores_what_was_saved(operations: list[str], random: Random) -> None:
    """Against a reference that keeps every exact state and the mixed state that running restores give."""
    model = Model(schema=SMALL, placement=TWO)
    with tempfile.TemporaryDirectory() as path:
        store = CheckpointStore(path)
        writer = store.writer(SMALL, TWO)
        exact: list[Rows] = []  # of the live history, oldest first
        running = copy.deepcopy(model)
        for operation in ["base", *operations]:
            model.train_some()
            kind = operation.split()[-1]
            if kind in ("base", "delta", "priority"):
                rows = {
                    name: sorted(ids)[: None if kind == "delta" else 1] for name, ids in model.dirty.items()
                }
                saved = model.all_rows() if kind == "base" else rows
                if "failed" in operation:
                    with (
                        patch.object(files, "link_new", refuse_global),
                        pytest.raises(OSError, match="global"),
                    ):
                        model.save(writer, kind, rows)
                else:
                    model.save(writer, kind, rows)
                    if kind != "priority":
                        exact.append(model.rows())
                for name, ids in saved.items():  # the shards' commits count for running restores all the same
                    running.weight[name][list(ids)] = model.weight[name][list(ids)]
                    running.state[name][list(ids)] = model.state[name][list(ids)]
            elif kind == "rollback":
                points = store.points()
                back = random.randrange(len(points))
                writer.rollback(points[back])
                exact = exact[: len(exact) - back]
                store.latest().plan().apply(model)
                running.weight, running.state = copy.deepcopy(model.weight), copy.deepcopy(model.state)
                model.dirty = {name: set() for name in model.dirty}
            else:
                writer.close()
                writer = store.writer(SMALL, TWO, keep=2)
                point = store.latest("running")
                point.plan().apply(model)
                writer.rollback(point)
                model.dirty = {name: set(ids) for name, ids in model.all_rows().items()}
            assert load(store, "exact") == exact[-1]
            assert load(store, "running") == running.rows()
            assert verify(path) == []
        writer.close()
        sequences = [[commit.sequence for commit in chain.commits] for chain in inspect(path).chains]
        assert all(numbers == sorted(set(numbers)) for numbers in sequences)
