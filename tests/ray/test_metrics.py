"""What shards and trainers export, as Ray's metrics are given it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.cluster_jobs import spec_of
from cluster.cluster_trainers import Trainer, train

from cpr_native.cluster.local import LocalDirectory
from cpr_native.ray import TrainingMetrics, metrics

pytestmark = pytest.mark.filterwarnings("ignore")


class Recorded:
    """Stands for a gauge or a counter: keeps what it was given."""

    seen: dict[str, Any]

    def __init__(self, name: str, *, description: str, tag_keys: tuple[str, ...]) -> None:
        assert description
        self.name, self.keys = name, tag_keys

    def set(self, value: float, *, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.keys
        self.seen[self.name] = value

    def inc(self, value: float, *, tags: dict[str, str]) -> None:
        assert tuple(tags) == self.keys
        self.seen[self.name] = self.seen.get(self.name, 0.0) + value


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    values: dict[str, Any] = {}
    monkeypatch.setattr(Recorded, "seen", values, raising=False)
    monkeypatch.setattr(metrics, "Gauge", Recorded)
    monkeypatch.setattr(metrics, "Counter", Recorded)
    return values


def test_a_shard_exports_its_status(tmp_path: Path, seen: dict[str, Any]) -> None:
    spec = spec_of(tmp_path, shards=2)
    directory = LocalDirectory(spec)
    train([Trainer(directory, spec)], 1, 3)
    server = directory.life(0).server
    exported = metrics.ShardMetrics("a", server)
    exported.export()
    exported.close()
    status = server.status()
    assert seen == {
        "cpr_shard_incarnation": 1.0,
        "cpr_shard_applied_step": 3.0,
        "cpr_shard_waiting_updates": 0.0,
        "cpr_shard_rows": float(sum(status.rows.values())),
        "cpr_shard_dirty_rows": float(sum(status.dirty.values())),
        "cpr_shard_memory_bytes": float(sum(status.memory.values())),
        "cpr_shard_commit_step": 0.0,
        "cpr_shard_restore_seconds": status.recovery.seconds,
        "cpr_shard_skipped_steps": 0.0,
    }
    assert seen["cpr_shard_dirty_rows"] > 0.0


def test_recoveries_add_up(seen: dict[str, Any]) -> None:
    training = TrainingMetrics("a")
    training.recovered(pls=0.01, lost_lookups=7, seconds=1.5)
    training.recovered(pls=0.01, lost_lookups=0, seconds=0.5)
    assert seen == {
        "cpr_pls": 0.01,
        "cpr_recoveries": 2.0,
        "cpr_lost_lookups": 7.0,
        "cpr_recovery_seconds": 2.0,
    }
