from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from store_cases import (
    PLACEMENT,
    SCHEMA,
    Model,
    copy,
    flip,
    history,
    manifest_path,
    place,
    restored,
    rewrite,
    segment_path,
    write_history,
)

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store import CheckpointStore, verify


def test_exact_is_one_step_and_running_adds_the_newest_priority_rows(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    exact, running = store.latest("exact"), store.latest("running")
    assert (exact.kind, exact.step, exact.samples, exact.sequence) == ("delta", 4, 40, 5)
    assert (running.kind, running.step, running.samples, running.sequence) == ("priority", 5, 50, 6)
    assert exact.skipped == running.skipped == ()
    assert restored(store, "exact") == seen[3]
    assert seen[3] != restored(store, "running") != seen[4]  # some rows of step 5, the others of step 4


def test_running_applies_oldest_first_and_leaves_superseded_priority_commits_out(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    plan = store.latest("running").plan()
    assert [s.commit.sequence for s in plan.segments if s.shard == 0] == [2, 3, 5, 6]
    assert [s.priority for s in plan.segments if s.shard == 0] == [False, False, False, True]
    assert [s.shard for s in plan.segments] == sorted(s.shard for s in plan.segments)
    assert plan.complete
    assert not plan.broken
    assert plan.rows == sum(sum(s.record.rows.values()) for s in plan.segments)
    assert plan.bytes == sum(
        segment_path(tmp_path, f"shards/{s.shard}", s.commit.sequence).stat().st_size for s in plan.segments
    )


def test_every_exact_point_gives_its_own_step(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    points = store.points()
    assert [point.step for point in points] == [4, 2, 1]
    for point in points:
        model = Model(seed=4)
        point.plan().apply(model)
        assert model.rows() == seen[point.step - 1]


def test_a_point_carries_dense_state_engine_and_info(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    point = store.latest()
    dense = point.dense()
    assert dense["rng"] == b"4"
    assert dense["mlp"].tolist() == [4.0, 4.0, 4.0]  # type: ignore[union-attr]
    assert point.engine == {"learning_rate": 0.1}
    assert point.info == {"at": 4}
    assert point.schema == SCHEMA
    assert point.placement == PLACEMENT
    assert len(point.run_id) == 32


def test_some_shards_only(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    before = Model(seed=1)
    model = Model(seed=1)
    store.latest().plan(shards=[1]).apply(model)
    for table in SCHEMA.tables:
        begin, end = PLACEMENT.row_range(SCHEMA, table.name, 1)
        whole = Model(seed=1)
        store.latest().plan().apply(whole)
        assert model.weight[table.name][begin:end].tobytes() == whole.weight[table.name][begin:end].tobytes()
        assert model.weight[table.name][:begin].tobytes() == before.weight[table.name][:begin].tobytes()
        assert model.weight[table.name][end:].tobytes() == before.weight[table.name][end:].tobytes()
    with pytest.raises(IndexError, match="shard 3 of 3"):
        store.latest().plan(shards=[3])
    assert seen


def test_a_shard_plan_reads_that_chain_only(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    whole = Model(seed=2)
    store.latest("running").plan().apply(whole)
    for path in (tmp_path / "shards/0").rglob("*.*"):
        path.unlink()
    for path in (tmp_path / "global/segments").iterdir():
        flip(path)
    model = Model(seed=2)
    store.shard_plan(1).apply(model)
    begin, end = PLACEMENT.row_range(SCHEMA, "user", 1)
    assert model.weight["user"][begin:end].tobytes() == whole.weight["user"][begin:end].tobytes()
    with pytest.raises(NoCheckpointError, match="shards/0: no intact commit"):
        store.shard_plan(0)


def test_a_shard_commit_without_a_global_one_counts_for_running_only(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    model = Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        point = store.latest("running")
        point.plan().apply(model)
        writer.rollback(point)
        model.step = 9
        model.train({"user": [0]})
        chain = writer._chains[1]
        save = chain.begin("priority", step=9, samples=90)
        save.add(model.parts({"user": [0]})[0])
        save.commit()
    assert restored(store, "exact") == seen[3]
    assert restored(store, "running") == model.rows()


def test_v23_nothing_valid_raises(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    with pytest.raises(NoCheckpointError, match=r"c: no checkpoint that can be restored \(exact\)"):
        store.latest()
    with pytest.raises(NoCheckpointError):
        store.shard_plan(0)
    assert store.points() == []
    assert not (tmp_path / "c").exists()  # reading makes nothing
    with store.writer(SCHEMA, PLACEMENT):
        for mode in ("exact", "running"):
            with pytest.raises(NoCheckpointError):
                store.latest(mode)
    history(tmp_path / "d")
    for path in (tmp_path / "d").rglob("*-000.safetensors"):
        flip(path)
    for mode in ("exact", "running"):
        with pytest.raises(NoCheckpointError, match="CRC-32C differs"):
            CheckpointStore(tmp_path / "d").latest(mode)
    with pytest.raises(ValueError, match="mode"):
        store.latest("newest")  # type: ignore[arg-type]


def test_reading_takes_no_lock_and_writes_nothing(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    with store.writer(SCHEMA, PLACEMENT):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        store.latest().plan().apply(Model())
        store.points()
        store.shard_plan(2)
        verify(tmp_path)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_running_needs_no_base(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for _ in range(3):
            model.train({"user": [3, 4], "tiny": [0]})
            model.save(writer, "priority", {"user": [3, 4], "tiny": [0]})
    with pytest.raises(NoCheckpointError):
        store.latest("exact")
    point = store.latest("running")
    plan = point.plan()
    assert not plan.complete
    assert not plan.broken
    fresh = Model(seed=3)
    plan.apply(fresh)
    assert fresh.weight["user"][[3, 4]].tobytes() == model.weight["user"][[3, 4]].tobytes()
    assert fresh.weight["user"][5].tobytes() == Model(seed=3).weight["user"][5].tobytes()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        writer.rollback(point)
        assert writer.permits("priority")
        assert not writer.permits("delta")


def test_v14_a_replayed_commit_is_refused(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    for chain in ("global", "shards/0"):
        # An old commit comes again under a new number, and an old segment under a newer name.
        manifest_path(tmp_path, chain, 9).write_bytes(manifest_path(tmp_path, chain, 3).read_bytes())
    segment_path(tmp_path, "shards/1", 5).write_bytes(segment_path(tmp_path, "shards/1", 3).read_bytes())
    point = store.latest()
    assert point.step == 2
    assert restored(store) == seen[1]
    assert any("sequence: expected 9, got 3" in message for message in point.skipped)
    assert len(verify(tmp_path)) == 3


def test_v14_a_commit_that_was_changed_and_sealed_again_is_refused(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    rewrite(manifest_path(tmp_path, "shards/1", 3), lambda m: m.update(step=1))
    point = store.latest()
    assert point.step == 1
    assert restored(store) == seen[0]
    assert any("expected by a later commit" in message for message in point.skipped)


def test_commits_of_another_run_or_schema_are_refused(tmp_path: Path) -> None:
    store, seen = history(tmp_path / "ours")
    write_history(tmp_path / "theirs")
    for chain in ("global", "shards/0"):
        theirs = manifest_path(tmp_path / "theirs", chain, 6)
        manifest_path(tmp_path / "ours", chain, 6).write_bytes(theirs.read_bytes())
    assert restored(store) == seen[3]
    assert any("run id" in message for message in store.latest("running").skipped)
    rewrite(manifest_path(tmp_path / "ours", "shards/0", 6), lambda m: m.update(run_id=store.latest().run_id))
    rewrite(manifest_path(tmp_path / "ours", "shards/0", 6), lambda m: m["schema"].update(seed=1))  # type: ignore[attr-defined]
    assert any("seed: expected 7, got 1" in message for message in store.shard_plan(0).skipped)


def test_v20_all_tables_are_verified_before_the_first_row_is_written(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    plan = store.points()[0].plan()  # manifests only: segments are not read yet
    last = plan.segments[-1]
    flip(segment_path(tmp_path, f"shards/{last.shard}", last.commit.sequence))
    model = Model(seed=8)
    before = model.rows()
    with pytest.raises(CorruptionError, match=last.record.name):
        plan.apply(model)
    assert model.calls == []
    assert model.rows() == before


@pytest.mark.parametrize("where", ["header", "item.id.rows", "item.id.weight", "item.id.state"])
def test_a_segment_that_changes_after_verification_is_not_applied(tmp_path: Path, where: str) -> None:
    store, _ = history(tmp_path)
    plan = store.latest().plan()
    plan.verify()
    first = plan.segments[0]
    path = segment_path(tmp_path, f"shards/{first.shard}", first.commit.sequence)
    flip(path, 50 if where == "header" else place(path, where))
    model = Model()
    with pytest.raises(CorruptionError, match=first.record.name):
        plan.apply(model)
    assert model.calls == []  # the first table of the first segment: nothing before it was damaged


def test_a_copied_directory_is_the_same_checkpoint(tmp_path: Path) -> None:
    _, seen = history(tmp_path / "a")
    assert restored(CheckpointStore(copy(tmp_path / "a", tmp_path / "b"))) == seen[3]


def test_the_store_needs_no_torch() -> None:
    code = "import sys, cpr_native.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
