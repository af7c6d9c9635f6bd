from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model

from cpr_native.errors import ForkedProcessError, LockedError
from cpr_native.store import CheckpointStore
from cpr_native.store.lock import ChainLock

HOLDER = """
import sys, time
from pathlib import Path
from cpr_native.store.lock import ChainLock
lock = ChainLock(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_dead_one_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LockedError, match=rf"LOCK: locked by another writer \(pid {holder.pid}\)"):
            ChainLock(path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.read_text() == f"{holder.pid}\n"
    ChainLock(path).close()
    assert path.read_text() == ""


def test_a_second_writer_of_this_process_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    with store.writer(SCHEMA, PLACEMENT) as writer:
        model = Model()
        model.save(writer, "base")
        for _ in range(2):  # a refusal must not free the lock either
            with pytest.raises(LockedError, match="another writer of this process"):
                store.writer(SCHEMA, PLACEMENT)
        with pytest.raises(LockedError, match="shards/1"):
            store.chain_writer(1, SCHEMA, PLACEMENT)
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "c/global/LOCK")], stderr=subprocess.PIPE
        ) as second:
            _, error = second.communicate()
        assert f"pid {os.getpid()}".encode() in error
    store.writer(SCHEMA, PLACEMENT).close()


def test_a_failed_open_frees_every_lock(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    with store.chain_writer(2, SCHEMA, PLACEMENT, run_id="r"), pytest.raises(LockedError, match="shards/2"):
        store.writer(SCHEMA, PLACEMENT, run_id="r")
    with pytest.raises(ValueError, match="run id"):
        store.writer(SCHEMA, PLACEMENT, run_id="other")
    store.writer(SCHEMA, PLACEMENT).close()


def test_a_forked_child_cannot_write_or_free_the_lock(tmp_path: Path) -> None:
    lock = ChainLock(tmp_path / "LOCK")
    with CheckpointStore(tmp_path / "c").chain_writer(0, SCHEMA, PLACEMENT) as writer:
        child = os.fork()
        if child == 0:
            try:
                lock.close()
                writer.begin("base", step=0, samples=0)
            except ForkedProcessError:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"
    with pytest.raises(LockedError):
        ChainLock(tmp_path / "LOCK")
    lock.close()
    lock.close()


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "LOCK").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="LOCK"):
        ChainLock(tmp_path / "LOCK")
    assert not (tmp_path / "elsewhere").exists()
