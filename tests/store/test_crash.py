from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from store_cases import PLACEMENT, SCHEMA, Model, python, python_environment, restored

from cpr_native.store import CheckpointStore, inspect, verify

# Forks one child per instant, which kills itself just before a system call of a save or at its end.
KILLER = """
import json, os, shutil, signal, sys, threading
from pathlib import Path
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import CheckpointStore, chain_save, files

root = Path(sys.argv[1])
model = Model()
with CheckpointStore(root / "old").writer(SCHEMA, PLACEMENT) as writer:
    model.save(writer, "base")
old = model.rows()
rows = {"user": [1, 9, 16], "item.id": [0, 6], "tiny": [1]}
model.train(rows)

def attempt(path, fatal):
    calls, lock = [], threading.Lock()
    def watched(name, real):
        def call(*arguments):
            with lock:
                calls.append(name)
                if len(calls) == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)
        return call
    store = CheckpointStore(path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        writer.rollback(store.latest())
        for name in ("write_new", "link_new", "sync_directory", "remove"):
            setattr(files, name, watched(name, getattr(files, name)))
        chain_save.write_rows = watched("write_rows", chain_save.write_rows)
        chain_save.write_dense = watched("write_dense", chain_save.write_dense)
        model.save(writer, "delta", rows)
        if len(calls) < fatal:
            os.kill(os.getpid(), signal.SIGKILL)
    return calls

shutil.copytree(root / "old", root / "whole")
calls = attempt(root / "whole", 0)
signals = []
for at in range(1, len(calls) + 2):
    shutil.copytree(root / "old", root / f"at-{at}")
    if os.fork() == 0:
        attempt(root / f"at-{at}", at)
        os._exit(0)
    signals.append(os.WTERMSIG(os.wait()[1]))
print(json.dumps({"calls": calls, "signals": signals}))
"""


def test_v11_v13_killed_at_every_system_call_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    done = python(KILLER, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["signals"]) == {signal.SIGKILL}
    # Of each chain: segment directory synced, manifest written and synced, linked, its directory synced.
    # Shards go side by side, the global commit gets its name last.
    chain = ["sync_directory", "write_new", "link_new", "remove", "sync_directory"]
    calls = told["calls"][-5 * 4 :]
    assert sorted(calls) == sorted(chain * 4)
    assert calls[-3:] == chain[2:]
    assert "link_new" not in calls[: calls.index("write_new") + 1]
    assert calls[: calls.index("link_new")].count("write_new") >= 3
    old, new = restored(CheckpointStore(tmp_path / "old")), restored(CheckpointStore(tmp_path / "whole"))
    assert old != new
    linked = max(at for at, call in enumerate(told["calls"], 1) if call == "link_new")
    for at in range(1, len(told["calls"]) + 2):
        store = CheckpointStore(tmp_path / f"at-{at}")
        assert restored(store) == (new if at > linked else old), at
        assert verify(store.path) == []
        check_next_writer(store)


def check_next_writer(store: CheckpointStore) -> None:
    """It removes what the killed one left, uses none of its numbers again, and saves."""
    used = {chain.chain: sequences(store.path / chain.chain) for chain in inspect(store.path).chains}
    model = Model(seed=1)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        for chain in inspect(store.path).chains:
            assert chain.unfinished == ()
            assert chain.commits[-1].sequence == max(used[chain.chain]) + 1
        model.save(writer, "base")
    assert restored(store) == restored(store, "running") == model.rows()


def sequences(chain: Path) -> set[int]:
    """Numbers of all files of a chain, unfinished ones too."""
    return {int(path.name[:12]) for path in chain.glob("*/*")}


WRITER = """
import sys
from store_cases import PLACEMENT, SCHEMA, Model
from cpr_native.store import CheckpointStore
model = Model()
with CheckpointStore(sys.argv[1]).writer(SCHEMA, PLACEMENT) as writer:
    for step in range(1, 10_000):
        model.step = step
        for name in model.weight:
            model.weight[name][:] = step
            model.state[name][:] = step
        model.save(writer, "base" if step == 1 else "delta", model.all_rows())
        print(step, flush=True)
"""


def test_v11_killed_at_any_time_a_finished_save_stands(tmp_path: Path) -> None:
    random.seed(3)
    for trial in range(3):
        path = tmp_path / str(trial)
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=python_environment(),
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "1\n"
            time.sleep(random.uniform(0.0, 0.2))
            child.kill()
            told = [1, *map(int, child.stdout.read().split())]
        store = CheckpointStore(path)
        step = store.latest().step
        assert step in (told[-1], told[-1] + 1)
        assert restored(store) == {
            table.name: (
                np.full((table.rows, table.dim), step, np.float32).tobytes(),
                np.full(table.rows, step, np.float32).tobytes(),
            )
            for table in SCHEMA.tables
        }
        assert verify(path) == []
