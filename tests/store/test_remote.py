"""A remote checkpoint seen from several machines: a folder behind a URL, each with a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_cases import LOG, Log, fail, files, open_store
from store_cases import PLACEMENT, SCHEMA, Model, flip, python, restored, segment_path

from cpr_native.errors import FencedError, LockedError, SchemaMismatchError
from cpr_native.store import CheckpointStore, inspect, remote, verify


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.001)
    LOG.clear()
    yield LOG
    LOG.clear()


def test_remote_holds_what_the_folder_holds(tmp_path: Path) -> None:
    store, model = open_store(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "priority"):
            model.train_some()
            model.save(writer, kind)
            assert files(tmp_path / "remote") == files(tmp_path / "cache")
    assert verify(tmp_path / "remote") == []
    assert restored(CheckpointStore(tmp_path / "remote"), "running") == model.rows()


def test_other_machine_restores_and_goes_on(tmp_path: Path) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta"):
            model.train_some()
            model.save(writer, kind)
    there = open_store(tmp_path, "other")
    assert restored(there) == model.rows()
    assert [point.step for point in there.points()] == [2, 1]
    with there.writer(SCHEMA, PLACEMENT) as writer:
        writer.rollback(there.latest())
        model.train_some()
        model.save(writer, "delta")
    assert restored(open_store(tmp_path, "third")) == model.rows()
    assert restored(open_store(tmp_path)) == model.rows()  # the first cache is older


def test_second_machine_fences_the_first(tmp_path: Path) -> None:
    first, model = open_store(tmp_path), Model()
    with first.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        seen = model.rows()
        other = open_store(tmp_path, "other")
        with other.writer(SCHEMA, PLACEMENT) as second:
            model.train_some()
            with pytest.raises(FencedError, match=r"another writer|newer writer"):
                model.save(writer, "delta")
            assert restored(open_store(tmp_path, "third")) == seen
            second.rollback(other.latest())
            model.save(second, "base")
        assert restored(open_store(tmp_path, "third")) == model.rows()
    # The fenced machine drops what it alone has.
    assert restored(first) == model.rows()
    with first.writer(SCHEMA, PLACEMENT) as again:
        assert again.incarnation == 3
    assert verify(tmp_path / "remote") == []


def test_writer_fenced_after_gaps_in_its_numbers(tmp_path: Path) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        for _ in range(3):
            writer.begin("delta", step=1, samples=1).abort()
        other = open_store(tmp_path, "other")
        with other.writer(SCHEMA, PLACEMENT) as second:
            model.train_some()
            with pytest.raises(FencedError, match="newer writer"):
                model.save(writer, "delta")  # its number is above the epoch's
            second.rollback(other.latest())
            model.train_some()
            model.save(second, "delta")
            # The number of the first one's commit is higher, and it was complete in the remote.
            assert restored(open_store(tmp_path, "third")) == model.rows()
            assert restored(open_store(tmp_path, "fourth"), "running") == model.rows()


def test_two_writers_of_one_store_object(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        with pytest.raises(LockedError):
            store.writer(SCHEMA, PLACEMENT)
        with pytest.raises(LockedError):
            open_store(tmp_path).writer(SCHEMA, PLACEMENT)
        Model().save(writer, "base")


def test_one_shard_reads_its_own_objects_only(tmp_path: Path, log: Log) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        model.train_some()
        model.save(writer, "delta")
    log.calls.clear()
    plan = open_store(tmp_path, "other").shard_plan(1)
    plan.apply(Model(seed=9))
    root = f"{tmp_path}/remote/"
    read = {path.removeprefix(root) for path in log.paths("read")}
    own = {name for name in files(tmp_path / "remote") if name.startswith("shards/1/")}
    whole = {name for name in files(tmp_path / "remote") if name.startswith("global/manifests")}
    assert read == own | whole
    assert len(log.paths("read")) == len(read)  # each once
    log.calls.clear()
    open_store(tmp_path, "other").shard_plan(1).apply(Model(seed=9))
    assert all("manifests" in path for path in log.paths("read"))


def test_damaged_object_is_refused_and_named(tmp_path: Path) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        seen = model.rows()
        model.train_some()
        model.save(writer, "delta")
    object_ = segment_path(tmp_path / "remote", "shards/1", 3)
    flip(object_)
    store = open_store(tmp_path, "other")
    point = store.latest()
    assert point.step == 0
    url = f"faulty://{object_}"
    assert [message for message in point.skipped if url in message and "CRC-32C" in message]
    assert restored(store) == seen
    assert not segment_path(tmp_path / "other", "shards/1", 3).exists()
    assert [p for p in verify(f"faulty://{tmp_path}/remote") if url in p]
    object_.write_bytes(object_.read_bytes()[:-1])
    assert any("expected" in message and url in message for message in store.latest().skipped)
    object_.unlink()
    assert any("missing" in message and url in message for message in store.latest().skipped)


def test_retention_is_mirrored(tmp_path: Path, log: Log) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT, keep=1) as writer:
        for kind in ("base", "delta", "base"):
            model.train_some()
            assert model.save(writer, kind).retention_error is None
        assert files(tmp_path / "remote") == files(tmp_path / "cache")
        removed = log.paths("remove")
        kinds = ["manifests" in path for path in removed if not path.endswith("ing")]
        assert kinds == sorted(kinds, reverse=True)
        log.fault = fail("remove", "shards/2/segments")
        model.train_some()
        info = model.save(writer, "base")
        assert info.retention_error is not None
        assert "reset by peer" in info.retention_error
    log.fault = lambda _call, _path: None
    with open_store(tmp_path, "other").writer(SCHEMA, PLACEMENT):
        assert restored(open_store(tmp_path, "third")) == model.rows()
    names = [n for n in files(tmp_path / "remote") if "segments" in n]
    assert len(names) == 4  # what the sweep could not remove, the next writer did


def test_cache_of_another_run_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        Model().save(writer, "base")
    other = CheckpointStore(f"faulty://{tmp_path}/second", cache=tmp_path / "own")
    with other.writer(SCHEMA, PLACEMENT) as writer:
        Model().save(writer, "base")
    with pytest.raises(SchemaMismatchError, match="run id"):
        CheckpointStore(f"faulty://{tmp_path}/second", cache=tmp_path / "cache").latest()


def test_needs_fsspec_only_for_urls(tmp_path: Path) -> None:
    done = python(
        """
import sys
sys.modules["fsspec"] = sys.modules["s3fs"] = None  # as if they were not installed
from store_cases import CheckpointStore, Model, PLACEMENT, SCHEMA
with CheckpointStore(sys.argv[1]).writer(SCHEMA, PLACEMENT) as writer:
    Model().save(writer, "base")
try:
    CheckpointStore("s3://bucket/run").latest()
except ModuleNotFoundError as error:
    print(error)
""",
        tmp_path / "plain",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("s3://bucket/run: needs fsspec, and s3fs for s3://: pip install ")


def test_where_things_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = CheckpointStore("s3://bucket/run/")
    assert (store.url, store.path.parent) == ("s3://bucket/run", tmp_path / "cpr-native")
    assert CheckpointStore("s3://bucket/run").path == store.path != CheckpointStore("s3://bucket/r").path
    plain = CheckpointStore(tmp_path / "plain")
    assert (plain.url, str(plain)) == (None, str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="URLs only"):
        CheckpointStore(tmp_path, cache=tmp_path)


def test_one_chain_is_written_alone(tmp_path: Path) -> None:
    store, model = open_store(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
    model.train_some()
    with store.chain_writer(1, SCHEMA, PLACEMENT) as chain:
        save = chain.begin("base", step=7, samples=70)
        for part in model.parts(model.all_rows()):
            if part.shard == 1:
                save.add(part)
        save.commit()
        assert not [c for c in LOG.paths("link") if "/shards/1/" not in c and "000000000003" in c]
    there = Model(seed=5)
    open_store(tmp_path, "other").shard_plan(1).apply(there)
    begin, end = PLACEMENT.row_range(SCHEMA, "user", 1)
    assert there.weight["user"][begin:end].tobytes() == model.weight["user"][begin:end].tobytes()


def test_compaction_is_mirrored(tmp_path: Path) -> None:
    model, store = Model(), open_store(tmp_path)
    with store.writer(SCHEMA, PLACEMENT, keep=1, compact=2) as writer:
        for kind in ("base", "delta", "delta", "delta", "priority", "priority", "priority", "delta", "delta"):
            model.train_some()
            model.save(writer, kind)
            writer.housekeeping.wait()
        assert writer.housekeeping.compaction_error is None
    assert files(tmp_path / "remote") == files(tmp_path / "cache")
    there = open_store(tmp_path, "other")
    plan = there.latest().plan()
    assert any(planned.commit.replaces for planned in plan.segments)
    assert restored(there) == model.rows()
    folded, error = open_store(tmp_path, "third").compact(keep=1)
    assert folded
    assert error is None
    assert restored(open_store(tmp_path, "fourth")) == model.rows()
    manifests = [[n for n in files(tmp_path / c) if "manifests" in n] for c in ("remote", "third")]
    assert manifests[0] == manifests[1]


def test_folded_in_the_background_and_kept_short_there_too(tmp_path: Path) -> None:
    store, model = open_store(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, compact=2, keep=1) as writer:
        for kind in ("base", "delta", "delta", "priority", "delta", "delta", "priority", "priority"):
            model.train_some()
            model.save(writer, kind)
        writer.housekeeping.wait()
        assert writer.housekeeping.compaction_error is None
        assert writer.housekeeping.retention_error is None
        assert files(tmp_path / "remote") == files(tmp_path / "cache")
    chain = inspect(tmp_path / "remote").chains[1]
    assert any(commit.replaces is not None for commit in chain.commits)
    assert verify(tmp_path / "remote") == []
    there = open_store(tmp_path, "other")
    assert restored(there, "running") == restored(CheckpointStore(tmp_path / "cache"), "running")
    assert there.latest().step == 6


@pytest.mark.parametrize("part", ["segments", "manifests"])
def test_what_is_folded_while_the_connection_breaks_is_folded_later(
    tmp_path: Path, log: Log, part: str
) -> None:
    store, model = open_store(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "delta"):
            model.train_some()
            model.save(writer, kind)
        log.fault = fail("write" if part == "segments" else "link", f"shards/1/{part}")
        with pytest.raises(OSError, match="connection reset"):
            writer.housekeeping.fold(0)
        assert restored(open_store(tmp_path, "other")) == model.rows()
        log.fault = lambda _call, _path: None
        model.train_some()
        model.save(writer, "delta")
        assert writer.housekeeping.fold(0)
    assert files(tmp_path / "remote") == files(tmp_path / "cache")
    assert verify(tmp_path / "remote") == []
    assert restored(open_store(tmp_path, "third")) == model.rows()
