"""A remote checkpoint whose connection breaks, and a writer that is killed while it uploads."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_cases import LOG, Log, fail, files, open_store
from store_cases import PLACEMENT, SCHEMA, Model, python_environment, restored

from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, inspect, remote, verify


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setattr(remote, "FIRST_DELAY", 0.001)
    LOG.clear()
    yield LOG
    LOG.clear()


@pytest.mark.parametrize("call", ["write", "link"])
def test_passing_errors_are_tried_again(tmp_path: Path, log: Log, call: str) -> None:
    log.fault = fail(call, "segments", times=3)
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
    log.fault = fail("read", "segments", times=3)
    assert restored(open_store(tmp_path, "other")) == model.rows()


@pytest.mark.parametrize("part", ["segments/000000000002", "shards/1/manifests", "global/manifests"])
def test_commit_is_not_reported_when_the_remote_lacks_it(tmp_path: Path, log: Log, part: str) -> None:
    store, model = open_store(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        model.train_some()
        seen = restored(open_store(tmp_path, "before"))
        log.fault = fail("write", part.replace("000000000002", "000000000003"))
        with pytest.raises(OSError, match=r"faulty://.*remote/.*reset by peer|reset by peer.*faulty://"):
            model.save(writer, "delta")
        log.fault = lambda _call, _path: None
        assert restored(open_store(tmp_path, "other")) == seen
        model.save(writer, "delta")
        assert restored(open_store(tmp_path, "third")) == model.rows()
    with store.writer(SCHEMA, PLACEMENT):  # removes what the failed save has left
        assert files(tmp_path / "remote") == files(tmp_path / "cache")


def test_an_accepted_part_is_not_sent_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 100)
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        name = "shards/0/segments/000000000002-000.safetensors"
        sent: list[int] = []

        def fault(call: str, path: str) -> None:
            if call == "write" and name in path:
                sent.append(len(sent))
                if len(sent) in (4, 5):
                    raise ConnectionResetError(104, "reset")

        log.fault = fault
        with pytest.raises(OSError, match="reset"):
            model.save(writer, "base")
        # The parts of that upload: three accepted, the fourth tried twice; the next commit goes on there.
        assert len(sent) == 5
        model.save(writer, "base")
    size = (tmp_path / "remote" / name).stat().st_size
    assert len(sent) == -(-size // 100) + 2
    assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "cache" / name).read_bytes()
    assert restored(open_store(tmp_path, "other")) == model.rows()


def test_write_that_breaks_off_in_the_middle_of_a_part(tmp_path: Path, log: Log) -> None:
    model = Model()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        log.cut = True
        model.save(writer, "base")
    assert verify(tmp_path / "remote") == []
    assert restored(open_store(tmp_path, "other")) == model.rows()


def test_unreachable_remote_is_an_error_and_not_an_empty_one(tmp_path: Path, log: Log) -> None:
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT) as writer:
        Model().save(writer, "base")
    log.fault = fail("list", "")
    with pytest.raises(OSError, match="reset"):
        open_store(tmp_path, "other").latest()
    log.fault = fail("read", "segments")
    with pytest.raises(OSError, match="reset"):
        open_store(tmp_path, "other").latest()
    with pytest.raises(NoCheckpointError):
        CheckpointStore(f"faulty://{tmp_path}/nothing", cache=tmp_path / "x").latest()


_KILLED = """
import sys, pathlib, time
from remote_cases import LOG, open_store
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import remote
remote.PART_BYTES = 100
root = pathlib.Path(sys.argv[1])
model = Model()
with open_store(root).writer(SCHEMA, PLACEMENT) as writer:
    model.save(writer, "base")
    print("base", flush=True)
    model.train_some()
    def fault(call, path):
        if call == "write" and sys.argv[2] in path:
            print("hangs", flush=True)
            time.sleep(60)
    LOG.fault = fault
    model.save(writer, "delta")
"""


@pytest.mark.parametrize("at", ["shards/1/segments", "shards/1/manifests", "global/manifests"])
def test_killed_in_mid_upload_then_resumed(tmp_path: Path, log: Log, at: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path), at],
        env=python_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert [process.stdout.readline() for _ in range(2)] == ["base\n", "hangs\n"]
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    model = Model()
    base = model.rows()
    model.train_some()
    assert restored(open_store(tmp_path, "other")) == base  # what was reported
    before = set(files(tmp_path / "remote"))
    log.calls.clear()
    with open_store(tmp_path).writer(SCHEMA, PLACEMENT):
        uploaded = {path.removeprefix(f"{tmp_path}/remote/") for path in log.paths("link")}
    assert not uploaded & {name for name in before if not name.endswith("uploading")}
    assert files(tmp_path / "remote") == files(tmp_path / "cache")
    expected = model.rows() if at.startswith("global") else base
    assert restored(open_store(tmp_path, "third")) == expected
    assert inspect(f"faulty://{tmp_path}/remote").problems == ()
