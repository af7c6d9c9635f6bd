from __future__ import annotations

from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model, history, restored

from cpr_native.errors import CorruptionError, CprError, FencedError, SchemaMismatchError
from cpr_native.store import CheckpointStore, inspect, verify


def test_over_a_history_only_a_base_or_a_rollback_comes_first(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    model = Model(seed=5)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        assert [writer.permits(kind) for kind in ("base", "delta", "priority")] == [True, False, False]
        for kind in ("delta", "priority"):
            with pytest.raises(CprError, match="has a history; save a base, or roll back"):
                writer.begin(kind, step=0, samples=0)
        model.save(writer, "base")
        assert all(writer.permits(kind) for kind in ("base", "delta", "priority"))
    assert restored(store) == restored(store, "running") == model.rows() != seen[-1]


def test_a_fresh_directory_takes_priority_saves_but_no_delta(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for _ in range(2):  # a writer that saved nothing leaves a fresh directory
        with store.writer(SCHEMA, PLACEMENT) as writer:
            assert writer.permits("priority")
            assert not writer.permits("delta")
            with pytest.raises(CprError, match="not permitted before a base"):
                writer.begin("delta", step=0, samples=0)


def test_rollback_then_new_commits(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    target = store.points()[1]  # the first delta
    assert target.step == 2
    model = Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        base = store.points()[2]
        with writer.begin("base", step=0, samples=0), pytest.raises(CprError, match="before a rollback"):
            writer.rollback(base)
        writer.rollback(base)
        assert store.latest().step == base.step == 1
        assert restored(store) == restored(store, "running") == seen[0]
        writer.rollback(target)
        assert restored(store) == restored(store, "running") == seen[1]
        target.plan().apply(model)
        model.step = 2
        model.train_some()
        info = model.save(writer, "delta")
    assert info.sequence > 6
    assert restored(store) == restored(store, "running") == model.rows()
    assert [point.step for point in store.points()] == [3, 2, 1]
    live = [commit.kind for commit in inspect(tmp_path).chains[1].commits if commit.live]
    assert live == ["epoch", "base", "delta", "rollback", "delta"]
    assert verify(tmp_path) == []


def test_resume_in_a_new_process_goes_on(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    model = Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        point = store.latest("running", schema=SCHEMA, placement=PLACEMENT)
        point.plan().apply(model)
        assert model.rows() == restored(store, "running")
        # Rows that came from priority commits are newer than base and deltas: they are dirty.
        assert sum(rows for _, rows, priority in model.calls if priority) > 0
        writer.rollback(point)
        assert writer.permits("delta")
        model.step = 5
        model.save(writer, "delta", {name: range(len(w)) for name, w in model.weight.items()})
    assert restored(store) == model.rows() != seen[3]


def test_require_base_refuses_deltas_until_one(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        writer.require_base()
        assert not writer.permits("delta")
        assert writer.permits("priority")
        model.save(writer, "priority", {})
        assert not writer.permits("delta")
        model.save(writer, "base")
        assert writer.permits("delta")


def test_one_chain_alone(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.chain_writer(1, SCHEMA, PLACEMENT, run_id="cluster") as writer:
        for kind in ("base", "priority"):
            model.train_some()
            save = writer.begin(kind, step=model.step, samples=0)
            for part in model.parts(model.all_rows() if kind == "base" else {"user": [8]}):
                if part.shard == 1:
                    save.add(part)
            save.commit(info={"note": 1})
    restored_model = Model(seed=3)
    plan = store.shard_plan(1)
    plan.apply(restored_model)
    assert restored_model.weight["user"][8].tobytes() == model.weight["user"][8].tobytes()
    with store.chain_writer(1, SCHEMA, PLACEMENT, run_id="cluster") as writer:
        assert not writer.permits("priority")
        writer.rollback(plan.chains[0].head)
        assert writer.permits("delta")
    with pytest.raises(SchemaMismatchError, match="run id"):
        store.writer(SCHEMA, PLACEMENT, run_id="other")
    store.writer(SCHEMA, PLACEMENT, run_id="cluster").close()


def test_a_chain_without_an_intact_manifest_is_not_written_over(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    for path in (tmp_path / "shards/1/manifests").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CorruptionError, match="shards/1: no manifest is intact"):
        store.writer(SCHEMA, PLACEMENT)


@pytest.mark.parametrize("written", [False, True])
def test_each_writer_is_a_new_incarnation_and_older_ones_are_fenced(tmp_path: Path, written: bool) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        old = writer.begin("delta", step=1, samples=1)
        if written:  # then the newer writer's epoch has a higher number, and this one's is still free
            old.add(model.parts({"user": [0]})[0])
            old.flush()
        # The lock file is lost (a directory on two hosts): the newer writer takes over.
        for lock in tmp_path.rglob("LOCK"):
            lock.unlink()
        with store.writer(SCHEMA, PLACEMENT) as newer:
            assert (writer.incarnation, newer.incarnation) == (1, 2)
            newer.rollback(store.latest())
            with pytest.raises(FencedError, match=r"shards/0"):
                old.commit({})
            old.abort()
            model.save(newer, "delta")
    assert verify(tmp_path) == []
    assert restored(store) == model.rows()
