"""Compaction and retention beside saves."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from store_cases import (
    PLACEMENT,
    SCHEMA,
    Model,
    flip,
    history,
    increments,
    priorities,
    python,
    restored,
    segment_path,
)

from cpr_native.store import CheckpointStore, files, housekeeping, inspect, verify
from cpr_native.store.chain import ChainReader
from cpr_native.store.compact import Run


def disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_a_long_chain_is_folded_beside_training(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, compact=3) as writer:
        for number in range(12):
            model.train_some()
            info = model.save(writer, "delta" if number else "base")
            assert info.compaction_error is None
            assert restored(store) == restored(store, "running") == model.rows()
        writer.housekeeping.wait()
        assert max(increments(tmp_path)) <= 5
    assert verify(tmp_path) == []
    assert [p.step for p in store.points()] == list(range(12, 0, -1))  # nothing was removed
    assert not any(chain.unfinished for chain in inspect(tmp_path).chains)


def test_the_disk_holds_two_bases_and_the_increments(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, keep=1, compact=4) as writer:
        model.save(writer, "base")
        base, largest, most = disk(tmp_path), 0, 0
        for _ in range(100):
            model.train_some()
            before = disk(tmp_path)
            model.save(writer, "delta")
            writer.housekeeping.wait()
            largest = max(largest, disk(tmp_path) - before)
            most = max(most, disk(tmp_path))
        assert most <= 2 * base + 6 * largest
        assert restored(store) == model.rows()
        assert verify(tmp_path) == []
    assert max(len(chain.commits) for chain in inspect(tmp_path).chains) < 12


def test_priority_saves_alone_are_bounded(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, keep=2, compact=4) as writer:
        model.save(writer, "base")
        for number in range(60):
            model.train_some()
            some = {name: sorted(ids)[number % 3 :: 3] for name, ids in model.dirty.items()}
            model.save(writer, "priority", some)
            writer.housekeeping.wait()
            if number % 10 == 9:
                assert verify(tmp_path) == []
                assert store.latest("running").step == model.step
                assert store.latest("exact").step == 0
        assert max(len(chain.commits) for chain in inspect(tmp_path).chains) < 12
        running = restored(store, "running")
    with store.writer(SCHEMA, PLACEMENT, keep=2, compact=4) as writer:
        writer.rollback(store.latest("running"))
        assert restored(store, "running") == running
    assert verify(tmp_path) == []


def test_priority_commits_before_the_newest_exact_point_are_removed(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, keep=1, compact=2) as writer:
        for kind in ("base", "priority", "delta", "priority", "delta", "priority", "delta"):
            model.train_some()
            model.save(writer, kind, {"user": [1]} if kind == "priority" else None)
        writer.housekeeping.wait()
        kinds = [c.kind for c in inspect(tmp_path).chains[1].commits]
        assert "priority" not in kinds
        assert restored(store) == restored(store, "running") == model.rows()
    assert verify(tmp_path) == []


def test_commits_that_come_while_the_thread_looks_are_folded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins, looked, goes_on = threading.Event(), threading.Event(), threading.Event()
    priority_run = housekeeping.priority_run

    def slow_run(reader: ChainReader) -> Run | None:
        run = priority_run(reader)
        if not looked.is_set():
            looked.set()
            assert goes_on.wait(60)
        return run

    monkeypatch.setattr(os, "setpriority", lambda *_: begins.wait(60))  # what the thread calls first
    monkeypatch.setattr(housekeeping, "priority_run", slow_run)
    store, model = CheckpointStore(tmp_path), Model()

    def save(*kinds: str) -> None:
        for kind in kinds:
            model.train_some()
            model.save(writer, kind)

    with store.writer(SCHEMA, PLACEMENT, compact=2) as writer:
        save("base", "delta", "delta")
        begins.set()
        assert looked.wait(60)
        save("delta", "delta")
        goes_on.set()
        writer.housekeeping.wait()
        assert max(increments(tmp_path)) <= 2
        assert restored(store) == model.rows()
    assert verify(tmp_path) == []


def test_an_error_is_told_at_the_next_save_and_goes_when_it_works(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, compact=1) as writer:
        for kind in ("base", "delta"):
            model.train_some()
            model.save(writer, kind)
        flip(damaged := segment_path(tmp_path, "shards/0", 3))
        model.train_some()
        model.save(writer, "delta")
        writer.housekeeping.wait()
        info = model.save(writer, "delta")
        assert info.compaction_error is not None
        assert damaged.name in info.compaction_error
        writer.housekeeping.wait()
        flip(damaged)
        model.save(writer, "delta")
        model.save(writer, "delta")
        writer.housekeeping.wait()
        assert model.save(writer, "delta").compaction_error is None
    assert restored(store) == model.rows()


KILLER = """
import os, shutil, signal, sys
from pathlib import Path
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import CheckpointStore, files

root = Path(sys.argv[1])
calls, fatal = 0, 0
real = {name: getattr(files, name) for name in ("remove", "link_new", "write_new", "sync_directory")}

def counted(name):
    def call(*arguments):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*arguments)
    return call

for name in real:
    setattr(files, name, counted(name))
with CheckpointStore(root / "old").writer(SCHEMA, PLACEMENT) as writer:
    model = Model()
    for kind in ("base", "delta", "priority", "delta", "priority", "priority"):
        model.train_some()
        model.save(writer, kind, {"user": [1, 8, 15], "tiny": [0]} if kind == "priority" else None)
shutil.copytree(root / "old", root / "0")
calls = 0
CheckpointStore(root / "0").compact(keep=1)
points = range(1, calls + 1, 7)
for fatal in points:
    shutil.copytree(root / "old", root / str(fatal))
    calls = 0
    if os.fork() == 0:
        CheckpointStore(root / str(fatal)).compact(keep=1)
        os._exit(0)
    assert os.WTERMSIG(os.wait()[1]) == signal.SIGKILL
print(*points)
"""


def test_v13_killed_in_compaction_or_retention_nothing_is_lost(tmp_path: Path) -> None:
    done = python(KILLER, tmp_path)
    assert done.stderr == ""
    points = [int(point) for point in done.stdout.split()]
    assert len(points) > 10
    old = CheckpointStore(tmp_path / "old")
    exact, running = restored(old), restored(old, "running")
    for at in (0, *points):
        store = CheckpointStore(tmp_path / str(at))
        assert verify(store.path) == []
        assert restored(store) == exact
        assert restored(store, "running") == running
        with store.writer(SCHEMA, PLACEMENT) as writer:
            writer.rollback(store.latest())
        assert not any(chain.unfinished for chain in inspect(store.path).chains)


def test_offline_compaction_of_priority_saves(tmp_path: Path) -> None:
    _, seen = priorities(tmp_path)
    store = CheckpointStore(tmp_path)
    folded, error = store.compact(keep=1)
    assert error is None
    assert [(each.kind, each.commits) for each in folded] == [("priority", 4)] * 3
    assert restored(store, "running") == seen[-1]
    assert verify(tmp_path) == []
    assert sorted(c.kind for c in inspect(tmp_path).chains[1].commits) == ["base", "epoch", "priority"]


def test_options_are_checked(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    for options in ({"keep": 0}, {"compact": 0}):
        with pytest.raises(ValueError, match="expected 1"):
            store.writer(SCHEMA, PLACEMENT, **options)
    assert files.exists(tmp_path / "global/LOCK")
