"""Forks, exits and threads: a collection belongs to the process that made it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, drain

from cpr_native._native import ForkedProcessError, Selection
from cpr_native._tensor import describe

EXIT_DURING_SNAPSHOT = """
import numpy as np
from engine import Engine
from cpr_native._native import Selection
engine = Engine(rows=(300_000,), dim=32, max_staging_bytes=1 << 20)
engine.random_step(np.random.default_rng(0), 100)
{hold}engine.begin(Selection.all(), clears_dirty=True)
print("end", flush=True)
"""

EXIT_IN_FORK = """
import os, sys
import numpy as np
from engine import Engine
from cpr_native._native import ForkedProcessError, Selection
engine = Engine(rows=(300_000,), dim=32, max_staging_bytes=1 << 20)
rng = np.random.default_rng(0)
engine.random_step(rng, 3000)
snapshot = engine.begin(Selection.all(), clears_dirty=True)
pid = os.fork()
if pid == 0:
    ids = np.arange(10)
    out, _ = engine.lookup(ids, np.arange(11))
    assert np.array_equal(out, engine.native.weight(0)[:10])
    calls = [lambda: engine.random_step(rng, 10), lambda: engine.begin(Selection.all(), clears_dirty=True)]
    for call in calls:
        try:
            call()
        except ForkedProcessError:
            continue
        sys.exit(3)
    sys.exit(0)  # runs the destructors of collection and snapshot
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
read = sum(len(chunk.rows) for chunk in snapshot)
snapshot.commit()
assert read == 300_000, read
print("end", flush=True)
"""

OUT_OF_MEMORY = """
import resource
from engine import Engine, drain
from cpr_native._native import CprError, Selection
engine = Engine(rows=(400_000,), dim=64, max_staging_bytes=1 << 28)  # 102 MB of rows
engine.native.mark_dirty(0)
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20), -1))
try:
    snapshot = engine.begin(Selection.dirty(), clears_dirty=True, blocking={blocking})
    held = [chunk for chunk in snapshot]
except (MemoryError, CprError) as error:
    print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
if not {blocking}:
    held = None
    snapshot.abort()
assert engine.native.num_dirty(0) == engine.native.dirty(0).sum() == 400_000
snapshot = engine.begin(Selection.all(), clears_dirty=True)
assert len(drain(snapshot, 1)[0].rows) == 400_000
snapshot.commit()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hold", ["", "snapshot = "])
def test_exit_during_a_snapshot_is_clean(hold: str) -> None:
    done = run(EXIT_DURING_SNAPSHOT.format(hold=hold))
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.parametrize("blocking", [True, False])
def test_a_snapshot_without_memory_fails_and_gives_everything_back(blocking: bool) -> None:
    """The walk's own lack of memory is a CprError for the reader, the reader's a MemoryError."""
    done = run(OUT_OF_MEMORY.format(blocking=blocking))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() in ([["MemoryError"]] if blocking else [["CprError"], ["MemoryError"]])


def test_fork_during_a_snapshot() -> None:
    done = run(EXIT_IN_FORK)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_look_up_but_not_update() -> None:
    engine = Engine(rows=(5000,), dim=16)
    rng = np.random.default_rng(0)
    engine.random_step(rng, 4000)  # starts the pool
    before = engine.rows_of(0)
    pid = os.fork()
    if pid == 0:  # no pytest in the child, whatever happens
        code = 1
        try:
            ids = rng.integers(0, 5000, 5000)
            out, batch = engine.lookup(ids, np.arange(5001))
            right = np.array_equal(out, engine.native.weight(0)[ids])
            try:
                engine.native.update(batch, describe(out), threads=2)
            except ForkedProcessError:
                code = 0 if right else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    engine.random_step(rng, 4000)
    assert not np.array_equal(engine.native.weight(0), before[0])


def test_commit_and_abort_from_another_thread_beside_training() -> None:
    engine = Engine(rows=(20_000,), dim=16, max_staging_bytes=1 << 20)
    rng = np.random.default_rng(0)
    for round_ in range(10):
        snapshot = engine.begin(Selection.dirty(), clears_dirty=True)

        def finish(snapshot=snapshot, fails=round_ % 2 == 0) -> None:  # type: ignore[no-untyped-def]
            drain(snapshot, 1)
            if fails:
                snapshot.abort()
            else:
                snapshot.commit()

        writer = threading.Thread(target=finish)
        writer.start()
        while writer.is_alive():
            engine.random_step(rng, 500)
        writer.join()
        assert engine.native.num_dirty(0) == engine.native.dirty(0).sum()
        assert engine.native.count_histogram(0).sum() == 20_000


def test_lookups_of_two_threads_at_once() -> None:
    engine = Engine(rows=(5000,), dim=16)
    failures: list[int] = []

    def look(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            lengths = rng.integers(0, 80, 200)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            ids = rng.integers(0, 5000, offsets[-1])
            out, _ = engine.lookup(ids, offsets)
            first = int(np.flatnonzero(lengths == lengths.max())[0])
            expected = engine.native.weight(0)[ids[offsets[first] : offsets[first + 1]]].sum(axis=0)
            if not np.allclose(out[first], expected, atol=1e-4):
                failures.append(seed)

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
