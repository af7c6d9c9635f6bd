"""A restart in a new process: everything comes from the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    STEPS,
    Arrays,
    Net,
    adam,
    batch_size,
    batches,
    dirty_bits,
    everything,
    loss_of,
    manage,
    rows_of,
    same,
    train_step,
)

from cpr_native.policy import Delta, Full, Mfu, Partial, Policy, Ssu
from cpr_native.recovery import RecoveryManager, ResumableLoader
from cpr_native.train import fit


def whole(optimizer: str) -> Arrays:
    model = Net(OPTIMIZERS[optimizer])
    dense = adam(model)
    torch.manual_seed(7)
    for batch in batches():
        train_step(model, batch, dense)
    return everything(model, dense)


def first_part(path: Path, policy: Policy, optimizer: str, steps: int) -> None:
    """Trains `steps` steps of the job and leaves it as a crash would: no close, the lock freed."""
    model = Net(OPTIMIZERS[optimizer])
    dense = adam(model)
    loader = ResumableLoader(batches())
    manager = manage(model, path, policy, dense=dense, loader=loader, background=False)
    torch.manual_seed(7)
    manager.start()
    for batch in loader:
        train_step(model, batch, dense)
        manager.step(BATCH)
        if manager.steps == steps:
            break
    manager.flush()
    manager.__exit__(KeyboardInterrupt)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
@pytest.mark.parametrize("steps", [2, 13])
def test_resumed_training_is_bit_equal(tmp_path: Path, policy: Policy, optimizer: str, steps: int) -> None:
    first_part(tmp_path, policy, optimizer, steps)
    model = Net(OPTIMIZERS[optimizer])
    dense = adam(model)
    torch.manual_seed(99)
    with manage(model, tmp_path, policy, dense=dense) as manager:
        fit(model, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size)
    assert same(everything(model, dense), whole(optimizer))
    (report,) = manager.recoveries
    assert report.restart
    assert report.mode == "full"
    assert report.step == (0 if steps == 2 else 10)
    assert manager.steps == STEPS


def test_resume_after_the_end_trains_nothing(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["sgd"])
    with manage(model, tmp_path, Delta()) as manager:
        fit(model, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size)
    again = Net(OPTIMIZERS["sgd"])
    with manage(again, tmp_path, Delta()) as manager:
        assert fit(again, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size) == STEPS
    assert same(everything(again), everything(model))
    assert manager.saves == ()


def test_a_save_after_resume_goes_on_with_the_chain(tmp_path: Path) -> None:
    first_part(tmp_path, Delta(), "adagrad", 13)
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Delta(), dense=adam(model), loader=ResumableLoader(batches()))
    manager.resume()
    train_step(model, batches(1, seed=8)[0])
    touched = sum(int(bits.sum()) for bits in dirty_bits(model))
    assert manager.save(wait=True)
    assert (manager.saves[-1].kind, manager.saves[-1].rows) == ("delta", touched)
    expected = everything(model)
    manager.close()
    other = Net(OPTIMIZERS["adagrad"])
    manager = manage(other, tmp_path, Delta(), dense=adam(other), loader=ResumableLoader(batches()))
    manager.resume()
    assert same(everything(other), expected)
    manager.close()


@pytest.mark.parametrize("policy", [Mfu(fraction=0.25), Ssu()], ids=["mfu", "ssu"])
def test_rows_from_priority_commits_are_dirty_after_a_restart(tmp_path: Path, policy: Policy) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, policy, background=False)
    manager.start()
    for batch in batches(4):
        train_step(model, batch)
    before = rows_of(model)
    manager.save(wait=True)
    taken = manager.saves[-1].rows
    manager.__exit__(KeyboardInterrupt)
    again = Net(OPTIMIZERS["adagrad"])
    manager = manage(again, tmp_path, policy, background=False)
    report = manager.resume()
    assert report is not None
    bits = dirty_bits(again)
    assert sum(int(flags.sum()) for flags in bits) == taken
    for table in range(3):
        weight = again.tables.engine.weight(table)
        assert weight[bits[table]].tobytes() == before[2 * table][bits[table]].tobytes()
    now = rows_of(again)
    manager.save("delta", wait=True)
    manager.__exit__(KeyboardInterrupt)
    third = Net(OPTIMIZERS["adagrad"])
    manager = manage(third, tmp_path, Full())
    manager.resume()
    assert same(rows_of(third), now)
    manager.close()


def test_engine_scalars_and_books_go_on(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Partial(), target_pls=0.0625, background=False)
    manager.start()
    for batch in batches(12):
        train_step(model, batch)
        manager.step(BATCH)
    manager.recover([1])
    model.tables.learning_rate = 0.25
    manager.close()
    again = Net(OPTIMIZERS["adagrad"])
    resumed = manage(again, tmp_path, Partial(), target_pls=0.0625, background=False)
    resumed.resume()
    assert resumed.pls == manager.pls > 0
    assert (resumed.steps, resumed.samples) == (12, 12 * BATCH)
    assert again.tables.engine.step == 12
    assert again.tables.learning_rate == 0.25
    resumed.close()


@pytest.mark.parametrize("policy", [Mfu(fraction=0.25), Ssu()], ids=["mfu", "ssu"])
def test_a_restart_under_a_priority_policy_reports_what_no_commit_has(tmp_path: Path, policy: Policy) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, policy, target_pls=0.0625, background=False)
    manager.start()
    for batch in batches(9):
        train_step(model, batch)
        manager.step(BATCH)
    manager.save(wait=True)
    engine = model.tables.engine
    unsaved = sum(int(engine.counts(table).sum()) for table in range(3))
    assert unsaved > 0
    for batch in batches(2, seed=8):  # trained again after the restart, so not lost
        train_step(model, batch)
    manager.__exit__(KeyboardInterrupt)
    resumed = manage(Net(OPTIMIZERS["adagrad"]), tmp_path, policy, target_pls=0.0625)
    report = resumed.resume()
    assert report is not None
    assert report.lost_lookups == unsaved
    lookups = sum(len(batch[0]) for batch in batches(9))
    assert report.pls == pytest.approx(unsaved / lookups * 9 / STEPS)
    assert resumed.pls == report.pls
    resumed.close()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from recovery.jobs import *
from cpr_native.policy import Delta
from cpr_native.recovery import ResumableLoader
torch.set_num_threads(1)
model = Net(OPTIMIZERS["adagrad"])
dense = adam(model)
loader = ResumableLoader(batches())
manager = manage(model, Path(sys.argv[1]), Delta(), dense=dense, loader=loader)
torch.manual_seed(7)
manager.start()
for batch in loader:
    train_step(model, batch, dense)
    manager.step(BATCH)
    if manager.steps < 12:
        manager.flush()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_v11_killed_process_goes_on_from_its_newest_save(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    model = Net(OPTIMIZERS["adagrad"])
    dense = adam(model)
    with manage(model, tmp_path, Delta(), dense=dense) as manager:
        fit(model, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size)
    assert same(everything(model, dense), whole("adagrad"))


LEFT_OPEN = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "manager.save('delta'); break")


def test_exit_without_close_finishes_the_save_in_flight(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, tmp_path, Delta(), dense=adam(model), loader=ResumableLoader(batches()))
    report = manager.resume()
    assert report is not None
    assert report.step == 12
    assert np.isfinite(model.tables.engine.weight(0)).all()
    assert isinstance(manager, RecoveryManager)
    manager.close()
