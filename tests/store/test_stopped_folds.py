"""Folds that are stopped: by the end of a writer, a rollback, a fork."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from store_cases import PLACEMENT, SCHEMA, Model, increments, restored

from cpr_native.store import CheckpointStore, StoreWriter, housekeeping, inspect


class Halted:
    """Stops the folding thread in the middle of a chain until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        real = housekeeping.fold

        def fold(*arguments: object) -> object:
            self.reached.set()
            assert self.go.wait(60)
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(housekeeping, "fold", fold)


def long_chain(writer: StoreWriter, model: Model) -> None:
    for kind in ("base", "delta", "delta"):
        model.train_some()
        model.save(writer, kind)


def test_closing_drops_what_is_being_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, model, halted = CheckpointStore(tmp_path), Model(), Halted(monkeypatch)
    writer = store.writer(SCHEMA, PLACEMENT, compact=1)
    long_chain(writer, model)
    assert halted.reached.wait(60)
    closing = threading.Thread(target=writer.close)
    closing.start()
    while not writer.housekeeping._closing:
        pass
    halted.go.set()
    closing.join()
    (chain, *_) = inspect(tmp_path).chains[1:]
    assert all(commit.replaces is None for commit in chain.commits)
    assert chain.unfinished == ()
    assert restored(store) == model.rows()


@pytest.mark.parametrize("late", [False, True])
def test_a_rollback_waits_for_no_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """`late`: the thread notes only after the next commit that it was stopped."""
    store, model, halted = CheckpointStore(tmp_path), Model(), Halted(monkeypatch)
    saved = threading.Event()
    if late:
        real = housekeeping.Housekeeping._again

        def again(self: housekeeping.Housekeeping, based: bool) -> None:
            assert saved.wait(60)
            real(self, based)

        monkeypatch.setattr(housekeeping.Housekeeping, "_again", again)
    with store.writer(SCHEMA, PLACEMENT, compact=1, keep=1) as writer:
        long_chain(writer, model)
        assert halted.reached.wait(60)
        threading.Timer(0.05, halted.go.set).start()
        with writer.paused():
            point = store.latest()
            point.plan().apply(model)
            writer.rollback(point)
            assert all(c.replaces is None for c in inspect(tmp_path).chains[1].commits)
        model.train_some()
        model.save(writer, "delta")
        saved.set()
        writer.housekeeping.wait()
        assert max(increments(tmp_path)) == 0
    assert restored(store) == model.rows()


def test_a_forked_child_leaves_the_thread_alone(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path), Model()
    with store.writer(SCHEMA, PLACEMENT, compact=1) as writer:
        long_chain(writer, model)
        with writer.paused():
            child = os.fork()
            if child == 0:
                writer.close()
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        model.train_some()
        model.save(writer, "delta")
        writer.housekeeping.wait()
        assert max(increments(tmp_path)) <= 1
