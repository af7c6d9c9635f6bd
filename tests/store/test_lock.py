from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model, python

from cpr_native.errors import LockedError
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


FORK = """
import os, sys
from pathlib import Path
from store_cases import PLACEMENT, SCHEMA
from cpr_native.errors import ForkedProcessError, LockedError
from cpr_native.store import CheckpointStore
from cpr_native.store.lock import ChainLock

path = Path(sys.argv[1])
lock = ChainLock(path / "LOCK")
writer = CheckpointStore(path / "c").chain_writer(0, SCHEMA, PLACEMENT)
if os.fork() == 0:
    try:
        lock.close()
        writer.close()
        writer.begin("base", step=0, samples=0)
    except ForkedProcessError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
if os.fork() == 0:
    try:
        ChainLock(path / "LOCK")
    except LockedError as error:
        os._exit(7 if f"pid {os.getppid()}" in str(error) else 1)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
writer.begin("base", step=0, samples=0).abort()
lock.close()
lock.close()
ChainLock(path / "LOCK").close()
"""


def test_a_forked_child_cannot_write_or_free_the_lock(tmp_path: Path) -> None:
    assert python(FORK, tmp_path).stderr == ""


def test_a_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "LOCK").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="LOCK"):
        ChainLock(tmp_path / "LOCK")
    assert not (tmp_path / "elsewhere").exists()
