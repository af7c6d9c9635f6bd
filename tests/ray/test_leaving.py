"""What a shard does before it leaves its node."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.cluster_jobs import TIMEOUT, LocalTables, spec_of
from cluster.cluster_trainers import Trainer, check_same, train

from cpr_native.cluster.local import LocalDirectory
from cpr_native.cluster.messages import CutMissed, CutRequest
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.ray.leaving import leave

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(path: Path, last: int) -> tuple[ClusterSpec, LocalDirectory]:
    spec = spec_of(path, shards=2)
    directory = LocalDirectory(spec)
    train([Trainer(directory, spec)], 1, last)
    return spec, directory


def test_all_that_is_not_saved_is_committed(tmp_path: Path) -> None:
    spec, directory = trained(tmp_path, 3)
    for shard in range(spec.shards):
        committed = leave(directory.life(shard).server, TIMEOUT, {})
        assert committed is not None
        assert (committed.step, committed.number) == (3, -1)
    again = LocalDirectory(spec)
    local = LocalTables(spec)
    for step in (1, 2, 3):
        local.step(step)
    check_same(again, spec, local)
    for shard in range(spec.shards):
        assert again.life(shard).server.recovery.watermarks == (3,)
        committed = leave(again.life(shard).server, TIMEOUT, {})
        assert committed is not None
        assert sum(committed.rows.values()) == 0, "nothing is left to save"


def test_a_cut_that_waits_for_a_step_is_given_up(tmp_path: Path) -> None:
    _, directory = trained(tmp_path, 3)
    server = directory.life(0).server
    request = CutRequest(number=7, generation=1, incarnation=server.incarnation, step=4, kind="base")
    server.cut(request)
    committed = leave(server, TIMEOUT, {})
    assert committed is not None
    assert committed.step == 3
    with pytest.raises(CutMissed, match="drained"):
        server.committed(7, TIMEOUT)


def test_a_commit_that_fails_is_logged_and_nothing_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, directory = trained(tmp_path, 2)
    server = directory.life(0).server
    server.close()
    caplog.set_level("INFO", "cpr_native.ray")
    for each in sorted((tmp_path / "shards" / "0").rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    assert leave(server, TIMEOUT, {"shard": 0}) is None
    assert '"event": "shard_left_unsaved"' in caplog.text
