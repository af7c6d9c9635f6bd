"""Saves beside training: what they contain, what happens when they fail, and what close leaves behind."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    ROWS,
    Arrays,
    Net,
    batches,
    dirty_bits,
    manage,
    rows_of,
    same,
    train_step,
)

import cpr_native.store.segment
from cpr_native.policy import Delta, Full, Mfu, Partial, Policy, Ssu
from cpr_native.recovery import RecoveryManager
from cpr_native.shard import RowRange, restore_rows
from cpr_native.store import CheckpointStore

ALL = {"full": Full(), "delta": Delta(), "partial": Partial(), "mfu": Mfu(), "ssu": Ssu()}


def started(path: Path, policy: Policy, **options: Any) -> tuple[Net, RecoveryManager]:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, path, policy, **options)
    manager.start()
    manager.flush()
    return model, manager


def on_disk(path: Path, mode: str = "exact") -> Arrays:
    """What a new process would restore: rows of a fresh model with the store's newest point."""
    model = Net(OPTIMIZERS["adagrad"])
    names = ("big", "mid", "tiny")
    ranges = [RowRange(name=names[table], table=table, begin=0, end=ROWS[table]) for table in range(3)]
    plan = CheckpointStore(path).latest(mode).plan()  # type: ignore[arg-type]
    restore_rows(model.tables.engine, ranges, plan, dirty="clear")
    return rows_of(model)


class Gate:
    """Holds the writer before its first segment until it is opened; or makes it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self.error: OSError | None = None
        write = cpr_native.store.segment._write

        def held(path: Path, *args: Any) -> Any:
            self.reached.set()
            assert self._open.wait(30)
            if self.error is not None:
                raise self.error
            return write(path, *args)

        monkeypatch.setattr(cpr_native.store.segment, "_write", held)

    def open(self) -> None:
        self._open.set()


@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
def test_v25_training_during_a_background_save_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    model, manager = started(tmp_path, policy)
    for batch in batches(6):
        train_step(model, batch)
    gate = Gate(monkeypatch)
    expected = rows_of(model)
    dense = [value.detach().clone() for value in model.mlp.parameters()]
    assert manager.save()
    for batch in batches(10, seed=8):
        train_step(model, batch)
    for parameter in model.mlp.parameters():
        parameter.data.fill_(9.0)
    assert gate.reached.wait(30)
    gate.open()
    manager.flush()
    assert not same(rows_of(model), expected)
    assert same(on_disk(tmp_path), expected)
    manager.recover([0])
    if manager.policy.recovery == "full":
        assert all(bool((a == b).all()) for a, b in zip(model.mlp.parameters(), dense, strict=True))
    manager.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_v11_v21_failed_write_raises_and_the_next_delta_has_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    model, manager = started(tmp_path, Delta())
    for batch in batches(4):
        train_step(model, batch)
    bits = dirty_bits(model)
    counts = [model.tables.engine.counts(table).copy() for table in range(3)]
    sampled = [model.tables.engine.sampled_rows(table).tolist() for table in range(3)]
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        gate.error = OSError(code, "no", "some/segment")
        gate.open()
        assert manager.save("delta")
        with pytest.raises(OSError, match="some/segment") as raised:
            manager.flush()
    assert raised.value.errno == code
    assert same(dirty_bits(model), bits)
    assert same([model.tables.engine.counts(table) for table in range(3)], counts)
    assert [model.tables.engine.sampled_rows(table).tolist() for table in range(3)] == sampled
    manager.flush()
    assert manager.save("delta", wait=True)
    assert manager.saves[-1].rows == sum(int(flags.sum()) for flags in bits)
    assert same(on_disk(tmp_path), rows_of(model))
    manager.close()


def test_v11_rows_updated_after_a_failed_save_began_are_saved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, manager = started(tmp_path, Delta())
    train_step(model, batches(1)[0])
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        gate.error = OSError(errno.ENOSPC, "No space left on device", "s")
        assert manager.save("delta")
        for batch in batches(5, seed=8):
            train_step(model, batch)
        gate.open()
        with pytest.raises(OSError, match="No space left"):
            manager.flush()
    manager.save("delta", wait=True)
    assert same(on_disk(tmp_path), rows_of(model))
    manager.close()


@pytest.mark.parametrize("background", [True, False])
def test_due_save_that_failed_is_raised_by_step_and_made_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    model, manager = started(tmp_path, Full(), background=background)
    data = batches(8)
    for batch in data[:4]:
        train_step(model, batch)
        manager.step(BATCH)
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        gate.error = OSError(errno.ENOSPC, "No space left on device", "s")
        gate.open()
        train_step(model, data[4])
        if background:
            manager.step(BATCH)
            while manager._saves._saver._thread.is_alive():  # type: ignore[union-attr]
                time.sleep(0.001)
            train_step(model, data[5])
        with pytest.raises(OSError, match="No space left"):
            manager.step(BATCH)
    steps = manager.steps
    assert steps == (6 if background else 5)
    train_step(model, data[6])
    manager.step(BATCH)
    manager.flush()
    assert [(save.reason, save.step) for save in manager.saves] == [("start", 0), ("due", steps + 1)]
    assert same(on_disk(tmp_path), rows_of(model))
    manager.close()


def test_due_save_waits_for_the_one_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, manager = started(tmp_path, Full())
    with monkeypatch.context() as patch:
        gate = Gate(patch)
        manager.save()
        for batch in batches(12):
            train_step(model, batch)
            manager.step(BATCH)
        assert manager.coalesced == 2
        assert manager.saving
        assert not manager.save()
        assert manager.coalesced == 3
        gate.open()
        manager.flush()
        assert not manager.saving
    train_step(model, batches(1)[0])
    manager.step(BATCH)
    manager.flush()
    assert [(save.reason, save.step) for save in manager.saves] == [
        ("start", 0),
        ("requested", 0),
        ("due", 13),
    ]
    manager.close()


@pytest.mark.parametrize("name", ALL)
def test_v19_close_commits_everything(tmp_path: Path, name: str) -> None:
    model, manager = started(tmp_path, ALL[name])
    for batch in batches(3):
        train_step(model, batch)
        manager.step(BATCH)
    manager.close()
    assert same(on_disk(tmp_path, "exact"), rows_of(model))
    assert same(on_disk(tmp_path, "running"), rows_of(model))
    assert manager.saves[-1].reason == "close"
    assert not any(bits.any() for bits in dirty_bits(model))
    saves = len(manager.saves)
    manager.close()
    assert len(manager.saves) == saves


def test_v19_leaving_the_block_closes_and_an_error_in_it_finishes_the_save(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["sgd"])
    with manage(model, tmp_path, Delta()) as manager:
        train_step(model, batches(1)[0])
        manager.step(BATCH)
    assert not manager.running
    other = Net(OPTIMIZERS["sgd"])
    path = tmp_path / "other"
    with pytest.raises(KeyError, match="mine"), manage(other, path, Delta()) as manager:  # noqa: PT012
        manager.start()
        manager.flush()
        train_step(other, batches(1)[0])
        manager.save("delta")
        raise KeyError("mine")
    assert not manager.running
    assert CheckpointStore(path).latest("exact").kind == "delta"


def test_v17_no_clock_decides_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def commits(path: Path) -> list[tuple[str, int, int, int]]:
        model, manager = started(path, Delta(), background=False)
        for batch in batches(11):
            train_step(model, batch)
            manager.step(BATCH)
        manager.close()
        return [(save.kind, save.step, save.samples, save.rows) for save in manager.saves]

    expected = commits(tmp_path / "a")
    jumps = itertools.cycle([1e6, -1e9, 3.0, 1e12])
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: next(jumps))
    for module in ("saves", "saver", "recovering"):
        monkeypatch.setattr(f"cpr_native.recovery.{module}.perf_counter", lambda: next(jumps))
    assert commits(tmp_path / "b") == expected
    assert [step for _, step, _, _ in expected] == [0, 5, 10, 11]
    assert same(on_disk(tmp_path / "a"), on_disk(tmp_path / "b"))


def test_empty_delta_is_a_valid_save(tmp_path: Path) -> None:
    model, manager = started(tmp_path, Delta())
    manager.save("delta", wait=True)
    assert manager.saves[-1].rows == 0
    assert same(on_disk(tmp_path), rows_of(model))
    manager.close()


def test_writes_behind_the_engines_back_are_in_the_next_delta(tmp_path: Path) -> None:
    model, manager = started(tmp_path, Delta())
    train_step(model, batches(1)[0])
    weight = model.tables.embedding_bags["mid"].weight
    weight.data = weight.data + 1.0
    manager.save("delta", wait=True)
    assert same(on_disk(tmp_path), rows_of(model))
    manager.close()


def test_kind_that_the_policy_cannot_save_is_refused(tmp_path: Path) -> None:
    _, manager = started(tmp_path, Full())
    with pytest.raises(ValueError, match="needs a policy that ranks rows"):
        manager.save("priority")
    assert manager.save("base", wait=True)
    manager.close()


def test_calls_before_start_are_refused(tmp_path: Path) -> None:
    manager = manage(Net(OPTIMIZERS["sgd"]), tmp_path, Full())
    for call in (manager.save, lambda: manager.recover([0])):
        with pytest.raises(ValueError, match="not running"):
            call()
    manager.close()
    assert not (tmp_path / "global").exists()
