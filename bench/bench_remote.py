"""Pulling segments from a remote checkpoint: range reads side by side against one stream, under latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_cases import LOG, open_store

from cpr_native.store import CollectionSchema, Placement, SegmentPart, TableSchema, remote_pull

SCHEMA = CollectionSchema(
    tables=(TableSchema(name="t", rows=400_000, dim=32, init_min=0.0, init_max=1.0),),
    optimizer="sgd",
    seed=1,
)
PLACEMENT = Placement.contiguous(SCHEMA, 1)
LATENCY = 0.03  # seconds of each call
BANDWIDTH = 50e6  # bytes a second of each stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("remote")
    rows = np.arange(400_000)
    part = SegmentPart(
        shard=0,
        table="t",
        rows=rows,
        weight=np.random.default_rng(1).random((400_000, 32), np.float32),
        state=None,
        count=rows.astype(np.uint32),
    )
    with open_store(path).writer(SCHEMA, PLACEMENT) as writer:
        save = writer.begin("base", step=1, samples=1)
        save.add(part)
        save.commit({})
    return path


@pytest.mark.parametrize("streams", [1, 8])
def test_pull(
    benchmark: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    monkeypatch.setattr(remote_pull, "THREADS", streams)
    monkeypatch.setattr(LOG, "latency", LATENCY)
    monkeypatch.setattr(LOG, "bandwidth", BANDWIDTH)
    caches = iter(range(100))

    def pull() -> int:
        store = open_store(folder, str(tmp_path / str(next(caches))))
        plan = store.shard_plan(0)
        return plan.bytes

    size = benchmark.pedantic(pull, rounds=2, iterations=1)
    benchmark.extra_info |= {"bytes": size, "streams": streams}
    assert size > 54_000_000
