from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_cases import SCHEMA, history, manifest_path, python, restored, rewrite, segment_path

from cpr_native.errors import NoCheckpointError
from cpr_native.store import inspect, verify


def test_links_in_the_directory_are_refused(tmp_path: Path) -> None:
    store, seen = history(tmp_path / "c")
    for chain, make in (("shards/0", segment_path), ("shards/1", manifest_path)):
        path = make(tmp_path / "c", chain, 5)
        moved = path.rename(tmp_path / path.name)
        path.symlink_to(moved)
    assert store.latest().step == 2
    assert restored(store) == seen[1]
    assert len(verify(tmp_path / "c")) >= 2
    (tmp_path / "c/shards/2/manifests").rename(tmp_path / "elsewhere")
    (tmp_path / "c/shards/2/manifests").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="shards/2/manifests"):
        store.latest()


def test_a_manifest_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    store, seen = history(tmp_path)
    newest = manifest_path(tmp_path, "global", 6)
    rewrite(newest, lambda m: m.update(kind="delta"))
    rewrite(newest, lambda m: m["commits"].pop("2"))  # type: ignore[attr-defined]
    assert any("names no commit of shard 2" in message for message in store.latest().skipped)
    assert restored(store) == seen[3]


def test_a_base_that_lacks_rows_is_refused(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    path = manifest_path(tmp_path, "shards/0", 2)
    rewrite(path, lambda m: m.update(segments=[]))
    assert any("table 'user': expected 7 rows, got 0" in problem for problem in verify(tmp_path))
    with pytest.raises(NoCheckpointError):
        store.latest()


def test_verify_names_foreign_files_but_not_unfinished_saves(tmp_path: Path) -> None:
    history(tmp_path)
    segment_path(tmp_path, "shards/0", 7).write_bytes(b"half a segm")
    (tmp_path / "shards/1/manifests/000000000007.json.tmp").write_bytes(b"{")
    assert verify(tmp_path) == []
    summary = inspect(tmp_path)
    assert [chain.unfinished for chain in summary.chains] == [
        (),
        ("000000000007-000.safetensors",),
        ("000000000007.json.tmp",),
        (),
    ]
    (tmp_path / "shards/2/segments/notes.txt").write_text("x")
    (tmp_path / "global/manifests/7.json").write_text("x")
    assert sorted(verify(tmp_path)) == [
        f"{tmp_path}/global/manifests/7.json: not a file of a checkpoint",
        f"{tmp_path}/shards/2/segments/notes.txt: not a file of a checkpoint",
    ]


def test_verify_finds_a_missing_base_chain_and_directory(tmp_path: Path) -> None:
    history(tmp_path)
    for sequence in (1, 2):  # as if retention had gone too far
        manifest_path(tmp_path, "shards/0", sequence).unlink()
    problems = verify(tmp_path)
    assert any("shards/0/manifests/000000000002.json" in problem for problem in problems)
    for path in (tmp_path / "shards/1").rglob("*.*"):
        path.unlink()
    assert any("shards/1/manifests" in problem for problem in verify(tmp_path))


def test_inspect_tells_chains_and_commits(tmp_path: Path) -> None:
    store, _ = history(tmp_path)
    summary = inspect(tmp_path)
    assert summary.run_id == store.latest().run_id
    assert summary.schema == SCHEMA
    assert summary.problems == ()
    assert [chain.chain for chain in summary.chains] == ["global", "shards/0", "shards/1", "shards/2"]
    shard = summary.chains[1]
    assert [c.kind for c in shard.commits] == ["epoch", "base", "delta", "priority", "delta", "priority"]
    assert [c.step for c in shard.commits] == [0, 1, 2, 3, 4, 5]
    assert [c.parent for c in shard.commits] == [None, 1, 2, 3, 4, 5]
    assert all(c.live for c in shard.commits)
    assert shard.commits[1].rows == {"user": 7, "item.id": 3, "tiny": 1}
    assert shard.bytes == sum(path.stat().st_size for path in (tmp_path / "shards/0/segments").iterdir())
    manifest_path(tmp_path, "shards/0", 3).write_bytes(b"")
    assert len(inspect(tmp_path).problems) == 1
    for path in (tmp_path / "global/manifests").iterdir():
        path.write_bytes(b"")
    with pytest.raises(NoCheckpointError, match="no intact manifest in global"):
        inspect(tmp_path)
    with pytest.raises(NoCheckpointError, match="holds no checkpoint"):
        verify(tmp_path / "nothing")


FULL = """
import resource, sys
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import CheckpointStore
model = Model()
with CheckpointStore(sys.argv[1]).writer(SCHEMA, PLACEMENT) as writer:
    model.save(writer, "base")
    model.train({"user": [1, 9, 16]})
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        model.save(writer, "delta")
    except OSError as error:
        print(error.errno, error.filename, sorted(model.dirty["user"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(model.save(writer, "delta").rows)
"""


@pytest.mark.parametrize(("size", "where"), [(100, "segments"), (300, "segments"), (1000, "manifests")])
def test_v21_a_disk_without_room_raises_with_the_path(tmp_path: Path, size: int, where: str) -> None:
    done = python(FULL, tmp_path, size)
    assert done.stderr == ""
    failed, saved = done.stdout.splitlines()
    assert failed.startswith(f"{27} {tmp_path}/")  # EFBIG: what RLIMIT_FSIZE gives in place of ENOSPC
    assert f"/{where}/" in failed
    assert failed.endswith("[1, 9, 16]")  # still dirty
    assert saved == "{'user': 3}"
    assert verify(tmp_path) == []
    assert not any(chain.unfinished for chain in inspect(tmp_path).chains)


READ_ONLY = """
import os, sys, tempfile
from pathlib import Path
from store_cases import PLACEMENT, SCHEMA, Model, restored
from cpr_native.store import CheckpointStore, verify
model = Model()
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)  # a superuser may write anywhere
with tempfile.TemporaryDirectory(dir="/tmp") as path:
    store = CheckpointStore(path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        old = model.rows()
        for where in ("shards/1/segments", "global/manifests"):
            model.train({"user": [9]})
            os.chmod(Path(path) / where, 0o555)
            try:
                model.save(writer, "delta")
            except PermissionError as error:
                assert where in error.filename, error
                assert model.dirty["user"] == {9}
                assert restored(store) == old
            else:
                raise AssertionError("written")
            os.chmod(Path(path) / where, 0o755)
        model.save(writer, "delta")
        assert restored(store) == model.rows()
        assert verify(path) == []
"""


def test_v21_a_read_only_folder_raises_with_the_path() -> None:
    assert python(READ_ONLY).stderr == ""


def test_an_error_that_says_nothing_about_a_file_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = history(tmp_path)
    real = os.open

    def refusing(path: str | Path, *arguments: int) -> int:
        if str(path).endswith("000000000005-000.safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError, match="000000000005-000"):
        store.latest()
