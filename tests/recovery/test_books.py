"""What the manager counts and remembers: before it starts, after it stopped, and after saves that failed."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    ROWS,
    SHARDS,
    Net,
    adam,
    batches,
    dirty_bits,
    in_shard,
    manage,
    same,
    train_step,
)

import cpr_native.store.segment
from cpr_native.policy import Delta, Full, Mfu, Partial, Policy, Ssu

PLS = 0.0625
POLICIES = {"partial": Partial(), "mfu": Mfu(fraction=0.25), "ssu": Ssu()}


def unsaved(model: Net, shards: tuple[int, ...]) -> int:
    engine = model.tables.engine
    pairs = [(table, shard) for table in range(len(ROWS)) for shard in shards]
    return sum(int(engine.counts(table)[in_shard(table, shard)].sum()) for table, shard in pairs)


def full_disk(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "segment")


@pytest.mark.parametrize("name", POLICIES)
def test_lookups_before_the_manager_started_are_in_its_base(tmp_path: Path, name: str) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    for batch in batches(4):
        train_step(model, batch)
    manager = manage(model, tmp_path, POLICIES[name], target_pls=PLS, background=False)
    train_step(model, batches(1, seed=6)[0])
    manager.start()
    for batch in batches(3, seed=8):
        train_step(model, batch)
        manager.step(BATCH)
    expected = unsaved(model, (1, 2))
    assert expected > 0
    assert manager.recover([1, 2]).lost_lookups == expected
    manager.close()


def test_a_closed_manager_that_resumes_counts_again(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Partial(), target_pls=PLS, background=False)
    manager.close()
    manager.start()
    train_step(model, batches(1)[0])
    manager.step(BATCH)
    expected = unsaved(model, (0,))
    assert manager.recover([0]).lost_lookups == expected > 0
    manager.close()
    with pytest.raises(ValueError, match="not running"):
        manager.recover([0])
    manager.resume()
    train_step(model, batches(1, seed=8)[0])
    manager.step(BATCH)
    expected = unsaved(model, (0,))
    assert manager.recover([0]).lost_lookups == expected > 0
    manager.close()


def test_first_base_that_failed_is_a_base_under_a_priority_policy_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Mfu(), target_pls=PLS)
    with monkeypatch.context() as patch:
        patch.setattr(cpr_native.store.segment, "_write", full_disk)
        manager.start()
        with pytest.raises(OSError, match="No space left"):
            manager.flush()
    for batch in batches(3):
        train_step(model, batch)
        manager.step(BATCH)
        manager.flush()
    kinds = [save.kind for save in manager.saves]
    assert kinds[0] == "base"
    assert set(kinds[1:]) == {"priority"}
    manager.close()


@pytest.mark.parametrize("policy", [Full(), Mfu()], ids=["full", "mfu"])
def test_full_disk_while_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, policy, background=False)
    write, left = cpr_native.store.files.write_new, [3]

    def until_full(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(cpr_native.store.files, "write_new", until_full)
        for call in (manager.start, lambda: manager.step(BATCH)):
            with pytest.raises(OSError, match="No space left"):
                call()
    assert (manager.running, manager.steps) == (False, 0)
    manager.start()
    assert [save.kind for save in manager.saves] == ["base"]
    manager.close()


@pytest.mark.parametrize("policy", [Full(), Mfu()], ids=["full", "mfu"])
def test_no_thread_for_a_save_undoes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, policy)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError, match="new thread"):
            manager.start()
        train_step(model, batches(1)[0])
        bits = dirty_bits(model)
        with pytest.raises(RuntimeError, match="new thread"):
            manager.step(BATCH)
        assert same(dirty_bits(model), bits)
    manager.step(BATCH)
    manager.flush()
    assert [(save.kind, save.step) for save in manager.saves] == [("base", 2)]
    manager.close()


def test_some_shards_committed_and_the_whole_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Delta(), background=False)
    manager.start()
    train_step(model, batches(1)[0])
    manager.step(BATCH)
    bits = dirty_bits(model)
    prepare = cpr_native.store.chain_writer.prepare_manifest

    def until_shard_2(chain: Path, manifest: Any) -> Any:
        if chain.name == "2":
            raise OSError(errno.ENOSPC, "No space left on device", str(chain))
        return prepare(chain, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(cpr_native.store.chain_writer, "prepare_manifest", until_shard_2)
        with pytest.raises(OSError, match="No space left"):
            manager.save("delta", wait=True)
    assert same(dirty_bits(model), bits)
    train_step(model, batches(1, seed=8)[0])
    touched = sum(int(flags.sum()) for flags in dirty_bits(model))
    manager.save("delta", wait=True)
    assert manager.saves[-1].rows == touched
    expected = [model.tables.engine.weight(table).copy() for table in range(3)]
    manager.close()
    again = Net(OPTIMIZERS["adagrad"])
    manager = manage(again, tmp_path, Delta())
    manager.resume()
    assert same([again.tables.engine.weight(table) for table in range(3)], expected)
    manager.close()


def test_all_shards_lost_at_once_and_again(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Partial(), target_pls=PLS, background=False)
    manager.start()
    at_start = [model.tables.engine.weight(table).copy() for table in range(3)]
    for batch in batches(2):
        train_step(model, batch)
        manager.step(BATCH)
    expected = unsaved(model, tuple(range(SHARDS)))
    assert manager.recover(range(SHARDS)).lost_lookups == expected
    assert manager.recover(np.arange(SHARDS)).lost_lookups == 0
    assert same([model.tables.engine.weight(table) for table in range(3)], at_start)
    manager.close()


def test_close_after_a_resume_from_a_priority_save_makes_an_exact_point(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Mfu(fraction=0.25), target_pls=PLS, background=False)
    manager.start()
    for batch in batches(3):
        train_step(model, batch)
        manager.step(BATCH)
    manager.save(wait=True)
    assert manager.saves[-1].kind == "priority"
    manager.__exit__(KeyboardInterrupt)
    again = Net(OPTIMIZERS["adagrad"])
    manager = manage(again, tmp_path, Mfu(fraction=0.25), target_pls=PLS, background=False)
    manager.resume()
    now = [again.tables.engine.weight(table).copy() for table in range(3)]
    manager.close()
    third = Net(OPTIMIZERS["adagrad"])
    manager = manage(third, tmp_path, Full())
    report = manager.resume()
    assert report is not None
    assert report.step == 3
    assert same([third.tables.engine.weight(table) for table in range(3)], now)
    manager.close()


def test_keep_bounds_what_is_on_disk(tmp_path: Path) -> None:
    kept = {}
    for keep in (None, 2):
        model = Net(OPTIMIZERS["adagrad"])
        path = tmp_path / str(keep)
        manager = manage(model, path, Full(), keep=keep, background=False)
        for batch in batches(3):
            train_step(model, batch)
            manager.step(BATCH)
            manager.save(wait=True)
        manager.close()
        assert {save.retention_error for save in manager.saves} == {None}
        kept[keep] = len(list((path / "shards" / "0" / "segments").iterdir()))
    assert kept == {None: 4, 2: 2}
    with pytest.raises(ValueError, match="keep"):
        manage(Net(OPTIMIZERS["adagrad"]), tmp_path / "none", Full(), keep=0)
    assert not (tmp_path / "none").exists()


def test_commits_that_cannot_be_removed_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "manifest")

    monkeypatch.setattr(cpr_native.store.housekeeping, "prune", read_only)
    manager = manage(Net(OPTIMIZERS["adagrad"]), tmp_path, Full(), keep=1, background=False)
    manager.start()
    assert "Read-only" in str(manager.saves[0].retention_error)
    manager.close()


def test_counts_of_samples_are_whole_numbers(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Full(), background=False)
    with pytest.raises(TypeError):
        manager.step(16.0)
    assert (manager.steps, manager.running) == (0, False)
    manager.step(np.int64(16))
    manager.step(torch.tensor(16))
    with pytest.raises(TypeError):
        manager.recover([1.5])
    manager.close()
    with pytest.raises(ValueError, match="samples_per_hour"):
        manage(model, tmp_path, Full(), samples_per_hour=float("inf"))


def test_dense_optimizer_of_a_running_manager_stays(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Full(), background=False)
    manager.dense_optimizer = adam(model)
    manager.start()
    manager.dense_optimizer = manager.dense_optimizer
    with pytest.raises(ValueError, match="optimizer of a started manager"):
        manager.dense_optimizer = adam(model)
    manager.close()
