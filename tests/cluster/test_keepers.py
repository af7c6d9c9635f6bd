"""A keeper outlives the shard's process, nobody takes it for that, and its end is of one moment."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster.cluster_jobs import LocalTables
from cluster.cluster_trainers import check_same, train
from cluster.process_clusters import Cluster

from cpr_native.cluster.shared_books import KEEPER, free_memory
from cpr_native.shared import keeper


@pytest.fixture
def name() -> Iterator[str]:
    """Of a keeper that is ended after the test."""
    name = f"test-keepers-{os.getpid()}"
    yield name
    keeper.stop(name)


@contextmanager
def ending(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keeper that ends, once, when somebody has connected to it and before it has answered."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(keeper._address(name))
    listening.listen()
    connect: Callable[[str], socket.socket | None] = keeper._connect

    def connected(name: str) -> socket.socket | None:
        found = connect(name)
        listening.close()
        return found

    monkeypatch.setattr(keeper, "_connect", connected)
    with listening:
        yield
    monkeypatch.undo()


def test_a_keeper_that_ends_before_it_answers_does_not_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ending(name, monkeypatch):
        assert not keeper.stop(name)
    with ending(name, monkeypatch):
        first = keeper.descriptor(name)
    second = keeper.descriptor(name)
    assert os.fstat(first).st_ino == os.fstat(second).st_ino
    os.close(first)
    os.close(second)
    assert keeper.stop(name)


def test_a_keeper_is_ended_once(name: str) -> None:
    """Whoever asks while it ends, or right after, is told that none runs."""
    for _ in range(5):
        os.close(keeper.descriptor(name))
        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(keeper.stop, [name] * 4)) == [False, False, False, True]
        assert not keeper.stop(name)


def test_who_has_no_descriptor_left_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "recv_fds", lambda *_: (b"m", [], 0, None))
    with pytest.raises(OSError, match="too many are open here"):
        keeper.descriptor(name)


def test_the_end_of_a_shard_with_a_keeper_is_seen(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, shared=KEEPER, run_id=f"keepers-{os.getpid()}")
    try:
        train(cluster.trainers, 1, 3)
        os.kill(cluster.directory.life(1).pid, signal.SIGKILL)
        train(cluster.trainers, 4, 5)
        assert cluster.directory.life(1).started(0).source == "memory"
        assert cluster.trainers[0].lost == [(1, 0)]
        local = LocalTables(cluster.spec)
        for step in range(1, 6):
            local.step(step)
        check_same(cluster.directory, cluster.spec, local)
    finally:
        cluster.close()
        assert [free_memory(cluster.spec, shard) for shard in range(2)] == [True, True]
