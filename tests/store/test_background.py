from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from store_cases import PLACEMENT, SCHEMA, Model

from cpr_native._native import SegmentFile
from cpr_native.store import SegmentPart
from cpr_native.store.background import Syncing, Workers
from cpr_native.store.segment import write_rows


def a_file(path: Path, closed: list[int], number: int) -> tuple[SegmentFile, list[SegmentPart]]:
    parts = [part for part in Model().parts({"user": [0, 1, 2]}) if part.shard == 0]
    parts = [replace(part, close=lambda: closed.append(number)) for part in parts]
    parts[0].check(SCHEMA, PLACEMENT)
    return write_rows(path / str(number), parts, SCHEMA, {})[0], parts


def broken(file: SegmentFile) -> SegmentFile:
    """Its next sync is refused, as a second one."""
    file.sync()
    return file


def test_calls_run_side_by_side_and_one_error_is_raised_when_all_have_ended() -> None:
    before = set(threading.enumerate())
    workers = Workers(2)
    meeting = threading.Barrier(2, timeout=10)
    ended: list[int] = []

    def meet(error: Exception | None) -> int:
        meeting.wait()
        ended.append(1)
        if error is not None:
            raise error
        return len(ended)

    assert sorted(workers.run([lambda: meet(None), lambda: meet(None)])) in ([1, 2], [2, 2])
    with pytest.raises(OSError, match="one"):
        workers.run([lambda: meet(OSError("one")), lambda: meet(None)])
    assert len(ended) == 4
    assert workers.run([]) == []
    workers.close()
    workers.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "cpr-sync"]


def test_no_thread_is_left_when_one_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def second_fails(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", second_fails)
    with pytest.raises(RuntimeError, match="new thread"):
        Workers(2)
    assert not started[0].is_alive()


@pytest.mark.parametrize("threads", [None, 2])
def test_parts_are_closed_when_their_file_is_durable(tmp_path: Path, threads: int | None) -> None:
    workers = None if threads is None else Workers(threads)
    syncing = Syncing(workers, 10**6)
    closed: list[int] = []
    for number in range(5):
        file, parts = a_file(tmp_path, closed, number)
        syncing.add(file, parts)
    syncing.wait()
    assert sorted(closed) == [0, 1, 2, 3, 4]
    assert parts == []
    with pytest.raises(ValueError, match="not synced yet"):
        file.sync()
    if workers is not None:
        workers.close()


def test_an_error_is_raised_once_by_whatever_comes_next_and_parts_are_closed(tmp_path: Path) -> None:
    workers = Workers(1)
    syncing = Syncing(workers, 0)
    closed: list[int] = []
    file, parts = a_file(tmp_path, closed, 0)
    syncing.add(broken(file), parts)
    file, parts = a_file(tmp_path, closed, 1)
    with pytest.raises(ValueError, match="not synced yet"):
        syncing.add(file, parts)  # no bytes may wait beside its own
    syncing.wait()
    assert sorted(closed) == [0, 1]
    file, parts = a_file(tmp_path, closed, 2)
    syncing.add(file, parts)
    syncing.drain()
    assert np.array_equal(closed, [0, 1, 2])
    workers.close()
