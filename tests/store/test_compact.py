"""Folding chains: base and deltas into a base, priority commits into one."""

from __future__ import annotations

from pathlib import Path

import pytest
from failing_system import failing_once
from store_cases import (
    PLACEMENT,
    SCHEMA,
    Model,
    copy,
    flip,
    history,
    manifest_path,
    priorities,
    restored,
    rewrite,
    segment_path,
)

from cpr_native.errors import CorruptionError, FencedError
from cpr_native.store import CheckpointStore, inspect, verify
from cpr_native.store.compact import exact_run, fold, priority_run
from cpr_native.store.segment_reader import read_tensors
from cpr_native.store.system import use

# What `history` writes: base 2, delta 3, priority 4, delta 5, priority 6; steps one less.


def folded(path: Path, most: int = 1) -> None:
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT) as writer:
        writer.housekeeping.fold(most)


def replaced(path: Path, chain: str = "shards/0") -> dict[int, int]:
    (found,) = [c for c in inspect(path).chains if c.chain == chain]
    return {commit.sequence: commit.replaces for commit in found.commits if commit.replaces is not None}


def test_base_and_deltas_become_a_base(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    running = restored(store, "running")
    folded(tmp_path)
    assert verify(tmp_path) == []
    assert list(replaced(tmp_path).values()) == [5]
    point = store.latest("exact")
    assert (point.step, point.skipped) == (4, ())
    assert [[c.kind for c in chain.commits] for chain in point.plan().chains] == [["base"]] * 3
    commit = point.plan().chains[0].commits[0]
    assert (commit.step, commit.samples, commit.parent, commit.exact_parent) == (4, 40, None, None)
    assert restored(store) == seen[3]
    assert restored(store, "running") == running
    assert store.latest("running").skipped == ()
    assert [point.step for point in store.points()] == [4, 2, 1]


def test_what_comes_after_is_added_to_the_folded_base(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    model = Model(seed=5)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        point = store.latest("exact")
        point.plan().apply(model)
        writer.rollback(point)
        for _ in range(3):
            model.train_some()
            model.save(writer, "delta")
            writer.housekeeping.fold(1)
            assert restored(store) == restored(store, "running") == model.rows()
    assert verify(tmp_path) == []
    plan = store.latest().plan()
    assert [len(chain.commits) for chain in plan.chains] == [1, 1, 1]
    assert plan.chains[0].commits[0].replaces is not None


def test_a_run_of_priority_commits_becomes_one_with_the_step_of_each_row(tmp_path: Path) -> None:
    _, seen = priorities(tmp_path)
    store, schema = CheckpointStore(tmp_path), SCHEMA
    taken: dict[int, int] = {}
    for sequence in range(3, 7):
        chain = store.latest("running").directory.shard(0)
        manifest = chain.load(sequence)[0]
        for record in manifest.segments:
            for row in read_tensors(chain.segment_path(record.name), record)["user.rows"].tolist():
                taken[row] = manifest.step
    folded(tmp_path)
    assert verify(tmp_path) == []
    assert restored(store, "running") == seen[-1]
    (number, of), *more = replaced(tmp_path).items()
    assert (of, more) == (6, [])
    chain = store.latest("running").directory.shard(0)
    manifest = chain.load(number)[0]
    assert (manifest.kind, manifest.step, manifest.parent) == ("priority", 4, chain.load(3)[0].parent)
    (record,) = manifest.segments
    tensors = read_tensors(chain.segment_path(record.name), record)
    assert dict(zip(tensors["user.rows"].tolist(), tensors["user.step"].tolist(), strict=True)) == taken
    plan = store.latest("running").plan()
    assert [[c.kind for c in each.commits] for each in plan.chains] == [["base", "priority"]] * 3
    assert schema.table("user").rows == 20


def test_folding_again_keeps_the_steps(tmp_path: Path) -> None:
    model, _ = priorities(tmp_path)
    store = CheckpointStore(tmp_path)
    folded(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        writer.rollback(store.latest("running"))
        model.train({"user": [0]})
        model.save(writer, "priority", {"user": [0]})
        before = restored(store, "running")
        writer.housekeeping.fold(1)
        reader = writer.housekeeping._chains[1].reader()
        run = priority_run(reader)
        assert run is not None
        steps = read_tensors(reader.segment_path(run.commits[0].segments[0].name), run.commits[0].segments[0])
    assert dict(zip(steps["user.rows"].tolist(), steps["user.step"].tolist(), strict=True))[0] == 5
    assert min(steps["user.step"].tolist()) < 5
    assert restored(store, "running") == before
    assert verify(tmp_path) == []


@pytest.mark.parametrize("damage", ["segment", "manifest", "gone"])
def test_a_damaged_replacement_is_passed_over(tmp_path: Path, damage: str) -> None:
    store, seen = history(tmp_path)
    running = restored(store, "running")
    folded(tmp_path)
    (sequence,) = replaced(tmp_path)
    segment, manifest = (p(tmp_path, "shards/0", sequence) for p in (segment_path, manifest_path))
    if damage == "segment":
        flip(segment)
    elif damage == "manifest":
        flip(manifest, 40)
    else:
        segment.unlink()
    point = store.latest("exact")
    assert point.step == 4
    assert restored(store) == seen[3]
    assert restored(store, "running") == running
    plan = point.plan()
    assert [len(chain.commits) for chain in plan.chains] == [3, 1, 1]
    (problem,) = verify(tmp_path)
    assert f"{sequence:012d}" in problem
    if damage != "manifest":
        assert f"{sequence:012d}" in point.skipped[0]
    assert not plan.broken


def test_rows_without_steps_are_no_folded_priority_commit(tmp_path: Path) -> None:
    priorities(tmp_path)
    rewrite(manifest_path(tmp_path, "shards/0", 6), lambda m: m.update(replaces=m["parent"]))
    assert any(".step': expected one" in problem for problem in verify(tmp_path))


def test_v13_compaction_that_fails_anywhere_changes_nothing(tmp_path: Path) -> None:
    store, seen = history(tmp_path / "whole")
    running, at, calls = restored(store, "running"), 0, 1
    while at < calls:
        path = copy(tmp_path / "whole", tmp_path / str(at))
        with CheckpointStore(path).writer(SCHEMA, PLACEMENT) as writer:
            with use(counted := failing_once(at)):
                if at == 0:
                    writer.housekeeping.fold(1)
                    calls = counted.calls
                else:
                    with pytest.raises(OSError, match="No space left"):
                        writer.housekeeping.fold(1)
            assert restored(CheckpointStore(path)) == seen[3]
            assert restored(CheckpointStore(path), "running") == running
            assert verify(path) == []
            writer.housekeeping.fold(1)
            assert restored(CheckpointStore(path)) == seen[3]
        at += 1
    assert calls > 15


def test_compaction_and_a_save_commit_in_either_order(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    model = Model(seed=5)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        point = store.latest("exact")
        point.plan().apply(model)
        writer.rollback(point)
        chain = writer.housekeeping._chains[1]
        for first in ("compaction", "save"):
            reader = chain.reader()
            run = exact_run(reader)
            assert run is not None

            saved = [first == "compaction"]

            def save_now(_: int, saved: list[bool] = saved) -> None:
                if not saved[0]:
                    saved[0] = True
                    model.train_some()
                    model.save(writer, "delta")

            made = fold(chain, reader, run, save_now)
            if first == "save":  # which had the later number and appeared earlier
                assert made.sequence < max(p.sequence for p in inspect(tmp_path).chains[1].commits)
            else:
                model.train_some()
                model.save(writer, "delta")
            assert restored(store) == model.rows()
    assert verify(tmp_path) == []


@pytest.mark.parametrize("replacing", [True, False])
def test_a_newer_incarnation_stops_compaction_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replacing: bool
) -> None:
    store, seen = history(tmp_path)
    monkeypatch.setattr("cpr_native.store.lock.ChainLock.__init__", lambda *_, **__: None)
    monkeypatch.setattr("cpr_native.store.lock.ChainLock.close", lambda *_: None)
    old = store.writer(SCHEMA, PLACEMENT)
    old.housekeeping._chains[1].reserve()  # numbers of saves that came to nothing
    old.housekeeping._chains[1].reserve()
    commit = (lambda: old.housekeeping.fold(1)) if replacing else (lambda: old.rollback(store.latest()))
    with store.writer(SCHEMA, PLACEMENT):
        with pytest.raises(FencedError, match="a newer writer has committed"):
            commit()
        assert replaced(tmp_path) == {}
    assert restored(store) == seen[3]


def test_a_damaged_chain_is_not_folded(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    flip(segment_path(tmp_path, "shards/1", 3))
    with store.writer(SCHEMA, PLACEMENT) as writer, pytest.raises(CorruptionError, match="000000000003-000"):
        writer.housekeeping.fold(1)
    assert replaced(tmp_path, "shards/1") == {}
    assert restored(store) == seen[0]
