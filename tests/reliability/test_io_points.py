from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.io_faults import FAULTS, SHORT_LIVES, fault_points, worth_failing
from campaigns.io_points import crash_points, record
from campaigns.memory_disk import MemoryDisk

from cpr_native.store import files


def test_v13_stopped_after_every_call_the_old_or_the_new_commit_is_there() -> None:
    counts = crash_points(seeds=0, lives=SHORT_LIVES)
    assert counts["calls"] > 1000
    assert counts["tried"] == 2 * (counts["calls"] + 1)
    assert counts["different"] > 300
    assert counts["lost"] == 0


def test_v21_a_call_that_fails_loses_nothing() -> None:
    assert fault_points(step=67)["tried"] > 50
    assert {kind for _, kind, _ in worth_failing(1)} == set(FAULTS)


def test_the_workload_makes_every_kind_of_call() -> None:
    assert {"open", "pwrite", "fsync", "fdatasync", "link", "unlink", "mkdir", "pread", "lock"} <= set(
        record(SHORT_LIVES).names
    )


def nothing(path: Path) -> None:
    pass


def write_unsynced(path: Path, data: bytes) -> None:
    calls = files.system.current()
    fd = calls.open(str(path), files._CREATE)
    calls.pwrite(fd, data, 0)
    calls.close(fd)


def replace(source: Path, target: Path) -> None:
    files.system.current().rename(str(source), str(target))


@pytest.mark.parametrize(
    ("name", "broken"),
    [("sync_directory", nothing), ("write_new", write_unsynced)],
    ids=["directories not synced", "manifests not synced"],
)
def test_a_store_that_forgets_a_sync_is_found_out(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: object
) -> None:
    monkeypatch.setattr(files, name, broken)
    with pytest.raises(AssertionError, match="without power after call"):
        crash_points(seeds=0, lives=SHORT_LIVES)


def test_rows_that_are_not_durable_at_their_commit_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, "fdatasync", lambda self, fd: None)
    with pytest.raises(AssertionError, match="without power after call"):
        crash_points(seeds=0, lives=SHORT_LIVES)
