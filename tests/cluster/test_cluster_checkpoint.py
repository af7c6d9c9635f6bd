"""A cluster's checkpoint is one like any other: for the reader of the format, `inspect` and `verify`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.cluster_jobs import LocalTables, spec_of
from cluster.cluster_trainers import Job, train

from cpr_native.policy import Drift
from cpr_native.store import CheckpointStore, Placement, inspect, rows_staggered, verify, whole_tables

SCRIPT = Path(__file__).parent.parent / "store" / "read_checkpoint.py"
spec = importlib.util.spec_from_file_location("read_checkpoint", SCRIPT)
assert spec is not None
assert spec.loader is not None
reader: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reader)


@pytest.mark.parametrize("made_by", [Placement.contiguous, rows_staggered, whole_tables])
def test_any_reader_finds_the_rows_of_the_step(tmp_path: Path, made_by: Any) -> None:
    placement = made_by(spec_of(tmp_path).schema, 3)
    job = Job(tmp_path, placement=placement)
    train(job.trainers, 1, 2)
    job.save(2)
    train(job.trainers, 3, 4)
    job.save(4, "priority", policy=Drift(fraction=0.3), save=1)
    job.save(4)
    train(job.trainers, 5, 6)
    job.save(6, "priority", policy=Drift(fraction=0.3), save=2)
    job.directory.kill(1)
    train(job.trainers, 7, 7)
    job.close()
    step, rows, dense = reader.newest(tmp_path)
    assert (step, dense["step"].tolist()) == (4, [4])
    local = LocalTables(job.spec)
    for number in range(1, 5):
        local.step(number)
    for table in job.spec.tables:
        expected = local.state(table.name)
        assert np.array_equal(rows[table.name][0], expected["weight"])
        assert np.array_equal(rows[table.name][1], expected["state"])
    assert verify(tmp_path) == []
    summary = inspect(tmp_path)
    assert summary.placement == placement
    assert summary.problems == ()
    point = CheckpointStore(tmp_path).latest("running")
    assert (point.step, point.kind) == (6, "priority")
