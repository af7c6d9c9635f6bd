from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_cases import PLACEMENT, SCHEMA, Model, history, manifest_path, restored, segment_path

from cpr_native.errors import CprError, FencedError, SchemaMismatchError
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
        most = max(part.nbytes for part in parts)
        for given, part in enumerate(parts, 1):
            save.add(replace(part, close=lambda part=part: (closed.append(part.nbytes), model._close())))
            # Of all shards together: 400 bytes gathered, as many written, and the newest segment.
            assert sum(p.nbytes for p in parts[:given]) - sum(closed) < 400 + 400 + 400 + most
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


def test_an_abort_that_cannot_remove_leaves_it_to_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        with writer.begin("priority", step=0, samples=0) as save:
            for part in model.parts(model.all_rows()):
                save.add(part)
            save.flush()
            monkeypatch.setattr(files, "remove", failing)
        monkeypatch.undo()
        model.save(writer, "base")
    assert [bool(chain.unfinished) for chain in inspect(tmp_path).chains] == [False, True, True, True]
    assert restored(store) == model.rows()
    store.writer(SCHEMA, PLACEMENT).close()
    assert not any(chain.unfinished for chain in inspect(tmp_path).chains)


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
        assert [chain.commits[-1].kind for chain in inspect(tmp_path).chains] == ["epoch"] * 4
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
        calls = itertools.count()

        def failing(*arguments: object) -> None:
            if next(calls) == call:
                raise OSError(5, "Input/output error", str(arguments[0]))
            real(*arguments)

        monkeypatch.setattr(files, where, failing)
        with pytest.raises(OSError, match="Input/output error"):
            model.save(writer, "delta")
        monkeypatch.setattr(files, where, real)
        assert next(calls) > call
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
