"""Threads that give way: they write the same, and leave the cores to others while they are wanted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import drain, trained

from cpr_native._native import SegmentFile, SegmentTensor, Selection, give_way
from cpr_native._tensor import describe

MEMORY = Path("/dev/shm")  # no disk to wait for


BUSY = "print('begun', flush=True)\nwhile True: pass"


@contextmanager
def busy_cores() -> Iterator[None]:
    """Two processes a core that do nothing but compute."""
    begun = [
        subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        for process in begun:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        yield
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(60)
    return found[0]


def sleeps() -> int:
    """How often this thread has given its core up by itself."""
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.skipif(not MEMORY.is_dir(), reason="needs a file system in memory")
def test_a_thread_that_gives_way_pauses_where_cores_are_wanted() -> None:
    data = np.random.default_rng(0).integers(0, 256, 64 << 20, dtype=np.uint8)
    tensor = SegmentTensor("x", "uint8", data.shape, [describe(data)])

    def written(folder: Path, *, gives_way: bool, files: int, pauses: int) -> tuple[list[int], int]:
        """Checksums of at most so many files, and the pauses in writing them; ends after so many of those."""
        if gives_way:
            give_way()
        crcs, before = [], sleeps()
        while len(crcs) < files and sleeps() - before < pauses:
            crcs.append(SegmentFile(str(folder / "file"), [tensor], {}).crc)  # given up: the file goes
        return crcs, sleeps() - before

    with tempfile.TemporaryDirectory(dir=MEMORY) as name, busy_cores():
        write = partial(written, Path(name))
        polite, pauses = in_a_thread(lambda: write(gives_way=True, files=200, pauses=10))
        plain, without = in_a_thread(lambda: write(gives_way=False, files=len(polite), pauses=10_000))
    assert polite == plain
    assert pauses > without


def test_a_snapshot_walked_by_one_has_the_rows_of_begin() -> None:
    engine = trained(rows=(50_000, 40))
    before = [engine.rows_of(t) for t in range(2)]
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True, walk=False)

    def read() -> Any:
        give_way()
        snapshot.walk()
        return drain(snapshot, 2)

    rng = np.random.default_rng(1)
    with busy_cores():
        for _ in range(4):
            engine.random_step(rng, 64)
        taken = in_a_thread(read)
    snapshot.commit()
    for t, n in enumerate(engine.rows):
        assert np.array_equal(taken[t].rows, np.arange(n))
        assert np.array_equal(taken[t].weight, before[t][0])
        assert np.array_equal(taken[t].state, before[t][1])
