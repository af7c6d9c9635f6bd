from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_cases import PLACEMENT, SCHEMA, Model, history, manifest_path, restored, segment_path

from cpr_native.errors import CorruptionError, CprError, FencedError, SchemaMismatchError
from cpr_native.store import CheckpointStore, Placement, files, inspect, verify


def test_commit_info_counts_rows_and_bytes(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.train_some()
        info = model.save(writer, "base")
    assert (info.kind, info.step, info.samples, info.sequence) == ("base", 1, 10, 2)
    assert info.rows == {"user": 20, "item.id": 7, "tiny": 2}
    assert info.bytes_written == sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))


def test_parts_are_closed_once_their_bytes_are_durable(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT, max_segment_bytes=400) as writer:
        save = writer.begin("base", step=0, samples=0)
        parts = model.parts(model.all_rows())
        closed: list[int] = []
        for given, part in enumerate(parts, 1):
            save.add(replace(part, close=lambda part=part: (closed.append(part.nbytes), model._close())))
            # 400 bytes over all shards together, not of each
            assert sum(p.nbytes for p in parts[:given]) - sum(closed) < 400
        assert model.closed > 0
        save.flush()
        assert model.closed == len(parts)
        save.commit({})
        assert model.closed == len(parts)
    assert len(list(tmp_path.rglob("shards/*/segments/*"))) > 3
    assert restored(CheckpointStore(tmp_path)) == model.rows()


def test_v7_an_empty_delta_is_a_commit(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        model.step = 5
        info = model.save(writer, "delta", {})
    assert info.rows == {}
    assert store.latest().step == 5
    assert restored(store) == model.rows()
    assert verify(tmp_path) == []


def test_a_base_without_all_rows_is_refused(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        with writer.begin("base", step=0, samples=0) as save:
            for part in model.parts({"user": range(20), "item.id": range(7), "tiny": [0]}):
                save.add(part)
            with pytest.raises(ValueError, match="base of shard 1: table 'tiny': expected 1 rows, got 0"):
                save.commit({})
        assert not writer.permits("delta")
        model.save(writer, "base")
    assert restored(CheckpointStore(tmp_path)) == model.rows()


def test_an_aborted_save_leaves_nothing_and_its_number_is_not_reused(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, max_segment_bytes=100) as writer:
        before = model.save(writer, "base")
        files_before = sorted(tmp_path.rglob("*"))
        with writer.begin("delta", step=1, samples=1) as save:
            for part in model.parts({"user": range(20)}):
                save.add(part)
            assert len(list(tmp_path.rglob("*.safetensors"))) > sum(
                p.suffix == ".safetensors" for p in files_before
            )
        assert sorted(tmp_path.rglob("*")) == files_before
        after = model.save(writer, "delta")
    assert after.sequence == before.sequence + 2
    with pytest.raises(CprError, match="committed or dropped"):
        save.add(model.parts({"user": [1]})[0])


def test_one_save_at_a_time(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        save = writer.begin("base", step=0, samples=0)
        with pytest.raises(CprError, match="a save is open"):
            writer.begin("base", step=0, samples=0)
        save.abort()
        writer.begin("base", step=0, samples=0).abort()


def test_arguments_are_checked(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for arguments, error in (
            ({"kind": "epoch"}, ValueError),
            ({"step": -1}, ValueError),
            ({"samples": 1.0}, TypeError),
            ({"engine": {"a": (1,)}}, TypeError),
        ):
            with pytest.raises(error):
                writer.begin(**{"kind": "base", "step": 0, "samples": 0, **arguments})  # type: ignore[arg-type]
        with writer.begin("priority", step=0, samples=0) as save:
            part = Model().parts({"user": [1]})[0]
            with pytest.raises(IndexError, match="shard 3 of 3"):
                save.add(replace(part, shard=3))
            with pytest.raises(TypeError):
                save.commit({"x": 1})  # type: ignore[dict-item]
        with writer.begin("priority", step=0, samples=0) as save, pytest.raises(TypeError, match="info"):
            save.commit({}, {"x": np.float32(1)})
    with pytest.raises(ValueError, match="keep"):
        store.writer(SCHEMA, PLACEMENT, keep=0)
    with pytest.raises(ValueError, match="max_segment_bytes"):
        store.writer(SCHEMA, PLACEMENT, max_segment_bytes=0)
    with pytest.raises(IndexError, match="shard 3 of 3"):
        store.chain_writer(3, SCHEMA, PLACEMENT)
    assert inspect(tmp_path).chains[0].commits[-1].kind == "epoch"


def test_another_model_run_or_placement_is_refused(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = replace(SCHEMA, tables=(*SCHEMA.tables[:1], replace(SCHEMA.tables[1], dim=3), SCHEMA.tables[2]))
    with pytest.raises(SchemaMismatchError, match=r"table 'item.id': dim: expected 3, got 2"):
        store.writer(other, PLACEMENT)
    with pytest.raises(SchemaMismatchError, match="shards: expected 2, got 3"):
        store.writer(SCHEMA, Placement.contiguous(SCHEMA, 2))
    with pytest.raises(SchemaMismatchError, match="run id: expected mine"):
        store.writer(SCHEMA, PLACEMENT, run_id="mine")
    for mode in ("exact", "running"):
        with pytest.raises(SchemaMismatchError, match=r"table 'item.id': dim"):
            store.latest(mode, schema=other)
        with pytest.raises(SchemaMismatchError, match="shards"):
            store.latest(mode, placement=Placement.contiguous(SCHEMA, 2))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_each_writer_is_a_new_incarnation_and_older_ones_are_fenced(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        old = writer.begin("delta", step=1, samples=1)
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


def test_a_sequence_taken_between_check_and_link_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.link_new

    def taken(source: Path, target: Path) -> None:
        target.write_bytes(b"theirs")
        real(source, target)

    with CheckpointStore(tmp_path).chain_writer(0, SCHEMA, PLACEMENT) as writer:
        monkeypatch.setattr(files, "link_new", taken)
        save = writer.begin("priority", step=0, samples=0)
        with pytest.raises(FencedError, match="sequence 2"):
            save.commit()
    assert manifest_path(tmp_path, "shards/0", 2).read_bytes() == b"theirs"


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


@pytest.mark.parametrize("where", ["write_new", "link_new", "sync_directory"])
@pytest.mark.parametrize("call", range(4))
def test_v11_a_failed_commit_leaves_the_old_state_and_the_next_one_has_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, call: int
) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        old = model.rows()
        model.train({"user": [1, 9, 16], "item.id": [0, 6]})
        real: Callable[..., None] = getattr(files, where)
        calls = 0

        def failing(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == call + 1:
                raise OSError(5, "Input/output error", str(arguments[0]))
            real(*arguments)

        monkeypatch.setattr(files, where, failing)
        with pytest.raises(OSError, match="Input/output error"):
            model.save(writer, "delta")
        monkeypatch.setattr(files, where, real)
        assert calls == call + 1
        assert restored(store) == old
        assert verify(tmp_path) == []
        new = model.save(writer, "delta")  # the model still has the rows as dirty
        assert new.rows == {"user": 3, "item.id": 2}
    assert restored(store) == restored(store, "running") == model.rows()
    assert verify(tmp_path) == []


def test_a_failed_segment_write_is_the_callers_error(tmp_path: Path) -> None:
    model = Model()
    with CheckpointStore(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        segment_path(tmp_path, "shards/2", 3).write_bytes(b"in the way")
        model.train({"user": [19]})
        with pytest.raises(FileExistsError, match="shards/2/segments"):
            model.save(writer, "delta")
        model.save(writer, "delta")
    assert restored(CheckpointStore(tmp_path)) == model.rows()
