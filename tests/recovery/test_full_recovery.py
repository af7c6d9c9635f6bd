"""Full recovery: a run with failures ends with the bits of a run without."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery.jobs import (
    OPTIMIZERS,
    STEPS,
    Arrays,
    Net,
    adam,
    batch_size,
    batches,
    dirty_bits,
    everything,
    in_shard,
    loss_of,
    manage,
    same,
    train_step,
)

from cpr_native.policy import Delta, Full, Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.train import fit


class Once:
    """Failures by step, each given once although steps come again."""

    def __init__(self, schedule: dict[int, list[int]]) -> None:
        self.schedule = dict(schedule)

    def __call__(self, step: int) -> list[int]:
        return self.schedule.pop(step, [])


def run(
    path: Path, policy: Policy, optimizer: str, failures: dict[int, list[int]], **options: Any
) -> tuple[Arrays, RecoveryManager]:
    model = Net(OPTIMIZERS[optimizer])
    dense = adam(model)
    manager = manage(model, path, policy, dense=dense, **options)
    torch.manual_seed(7)
    with manager:
        fit(model, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size, failures=Once(failures))
        assert manager.steps == STEPS
        return everything(model, dense), manager


@cache
def undisturbed(optimizer: str) -> Arrays:
    """The end of the same training in a plain loop, without a manager."""
    model = Net(OPTIMIZERS[optimizer])
    dense = adam(model)
    torch.manual_seed(7)
    for batch in batches():
        train_step(model, batch, dense)
    return everything(model, dense)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", [Full(), Delta(base_every=3)], ids=["full", "delta"])
def test_training_after_failures_is_bit_equal(
    tmp_path: Path, policy: Policy, optimizer: str, background: bool
) -> None:
    failures = {3: [1], 17: [0, 2], 18: [3], STEPS: [2]}
    got, manager = run(tmp_path, policy, optimizer, failures, background=background)
    assert same(got, undisturbed(optimizer))
    assert [report.shards for report in manager.recoveries] == [(1,), (0, 2), (3,), (2,)]
    assert all(report.mode == "full" for report in manager.recoveries)


def test_saves_do_not_change_training(tmp_path: Path) -> None:
    got, manager = run(tmp_path, Delta(), "adagrad", {})
    assert same(got, undisturbed("adagrad"))
    assert not manager.recoveries


def test_report_of_a_full_recovery(tmp_path: Path) -> None:
    _, manager = run(tmp_path, Full(), "adagrad", {18: [1]}, background=False)
    (report,) = manager.recoveries
    assert (report.mode, report.restart, report.step, report.samples) == ("full", False, 15, 240)
    assert (report.lost_samples, report.hours_lost) == (48, 3.0)
    assert (report.rows_restored, report.rows_reset) == (505, 0)
    assert (report.lost_lookups, report.pls, report.skipped) == (0, 0.0, ())
    assert manager.pls == 0


def recovered(path: Path, policy: Policy) -> tuple[Net, RecoveryManager, Arrays]:
    """Trains 12 steps with a save at 10, then loses shard 1."""
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, path, policy, background=False)
    manager.start()
    at_save: Arrays = []
    for step, batch in enumerate(batches(12), start=1):
        train_step(model, batch)
        manager.step(batch_size(batch))
        if step == 10:
            at_save = everything(model)
    pointers = [model.tables.engine.weight(table).ctypes.data for table in range(3)]
    manager.recover([1])
    assert [model.tables.engine.weight(table).ctypes.data for table in range(3)] == pointers
    return model, manager, at_save


@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
def test_all_rows_and_engine_scalars_go_back(tmp_path: Path, policy: Policy) -> None:
    model, manager, at_save = recovered(tmp_path, policy)
    assert same(everything(model), at_save)
    assert model.tables.engine.step == 10
    assert manager.steps == 10
    manager.close()


@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
def test_v16_trackers_after_a_full_restore_are_those_right_after_the_commit(
    tmp_path: Path, policy: Policy
) -> None:
    model, manager, _ = recovered(tmp_path, policy)
    engine = model.tables.engine
    for table in range(3):
        assert not engine.dirty(table).any()
        assert not engine.counts(table).any()
        assert len(engine.sampled_rows(table)) == 0
    batch = batches(1, seed=8)[0]
    train_step(model, batch)
    touched = sum(int(engine.counts(table).sum()) for table in range(3))
    assert touched == len(batch[0])
    manager.close()


def test_learning_rate_goes_back_with_a_full_recovery(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["sgd"])
    manager = manage(model, tmp_path, Full(), background=False)
    manager.start()
    model.tables.learning_rate = 0.5
    manager.recover([0])
    assert model.tables.learning_rate == np.float32(0.05)
    manager.close()


def test_failure_before_the_first_due_save_goes_back_to_the_start(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    before = everything(model)
    manager = manage(model, tmp_path, Delta())
    manager.start()
    for batch in batches(2):
        train_step(model, batch)
        manager.step(batch_size(batch))
    report = manager.recover([0, 1, 2, 3])
    assert same(everything(model), before)
    assert (report.step, report.lost_samples) == (0, 32)
    assert not any(bits.any() for bits in dirty_bits(model))
    manager.close()


def test_recovery_with_damaged_newest_save_goes_further_back_and_says_so(tmp_path: Path) -> None:
    model, manager, _ = recovered(tmp_path, Full())
    manager.save(wait=True)
    newest = max((tmp_path / "shards" / "2" / "segments").iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    report = manager.recover([2])
    assert report.skipped
    assert newest.name in " ".join(report.skipped)
    assert np.isfinite(model.tables.engine.weight(0)[in_shard(0, 2)]).all()
    manager.close()
