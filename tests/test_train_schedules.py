"""`fit` with schedulers and a gradient scaler: equal to the plain loop, failures and restarts included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.jobs import Net, batch_size, batches, everything, loss_of, manage, same
from torch.optim import lr_scheduler

from cpr_native.optim import RowWiseAdagrad
from cpr_native.policy import Full
from cpr_native.train import fit

STEPS = 14


class Stop(Exception):
    """Ends a run early."""


class Job:
    """A model, its dense optimizer, a schedule of each kind and a gradient scaler."""

    def __init__(self) -> None:
        self.model = Net(RowWiseAdagrad(lr=0.05))
        self.dense = torch.optim.Adam(self.model.mlp.parameters(), lr=0.01)
        tables = self.model.tables.fused_optimizer
        self.schedulers: Sequence[Any] = [
            lr_scheduler.CosineAnnealingLR(tables, T_max=9),
            lr_scheduler.ReduceLROnPlateau(self.dense, patience=1, factor=0.5, threshold=0.2),
        ]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4)

    def fit(self, path: Path, *, stop: int = 0, **options: Any) -> Any:
        def stopping(step: int, loss: float) -> None:
            if step == stop:
                raise Stop

        with manage(self.model, path, Full(), background=False) as manager:
            fit(
                self.model,
                batches(STEPS),
                manager,
                loss_fn=loss_of,
                dense_optimizer=self.dense,
                schedulers=self.schedulers,
                grad_scaler=self.scaler,
                batch_size_of=batch_size,
                callbacks=[stopping],
                **options,
            )
        return manager

    def state(self) -> list[Any]:
        members = [*self.schedulers, self.scaler]
        return [repr(member.state_dict()) for member in members] + [self.model.tables.optimizer_scalars()]


@pytest.fixture(scope="module")
def through() -> Job:
    """The same training as a plain loop."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    job = Job()
    for batch in batches(STEPS):
        job.dense.zero_grad()
        job.model.tables.grad_scale = 1.0 / job.scaler.get_scale()
        loss = loss_of(job.model, batch)
        job.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        job.scaler.step(job.dense)
        job.scaler.update()
        job.schedulers[0].step()
        job.schedulers[1].step(loss.item())
    torch.set_num_threads(before)
    return job


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(job: Job, through: Job) -> None:
    assert job.state() == through.state()
    got, expected = everything(job.model, job.dense), everything(through.model, through.dense)
    assert same(got, expected)


def test_is_the_plain_loop(tmp_path: Path, through: Job) -> None:
    job = Job()
    manager = job.fit(tmp_path)
    check(job, through)
    assert list(manager.app_state) == ["scheduler_0", "scheduler_1", "grad_scaler"]
    assert job.model.tables.learning_rate < 0.05
    assert job.dense.param_groups[0]["lr"] < 0.01
    assert job.scaler.get_scale() == 16.0 * 2 ** (STEPS // 4)


def test_a_failure_replays_the_schedules(tmp_path: Path, through: Job) -> None:
    job = Job()
    schedule = {4: [0], 12: [1, 2]}
    manager = job.fit(tmp_path, failures=lambda step: schedule.pop(step, ()))
    assert len(manager.recoveries) == 2
    check(job, through)


def test_a_restart_goes_on_in_the_schedules(tmp_path: Path, through: Job) -> None:
    with pytest.raises(Stop):
        Job().fit(tmp_path, stop=11)
    job = Job()
    manager = job.fit(tmp_path)
    assert manager.recoveries[0].restart
    check(job, through)


def test_a_restart_without_the_schedulers_is_refused(tmp_path: Path) -> None:
    Job().fit(tmp_path)
    job = Job()
    job.schedulers = job.schedulers[:1]
    with pytest.raises(ValueError, match=r"app_state: the manager has .*scheduler_0'\], the checkpoint"):
        job.fit(tmp_path)


def test_members_that_the_manager_has_are_not_saved_twice(tmp_path: Path) -> None:
    job = Job()
    members = {"rates": job.schedulers[0]}
    manager = manage(job.model, tmp_path, Full(), app_state=members, dense=job.dense)
    fit(
        job.model,
        batches(2),
        manager,
        loss_fn=loss_of,
        schedulers=job.schedulers,
        batch_size_of=batch_size,
    )
    assert list(manager.app_state) == ["rates", "scheduler_1"]
    manager.close()


def test_a_grad_scaler_needs_a_dense_optimizer(tmp_path: Path) -> None:
    job = Job()
    manager = manage(job.model, tmp_path, Full())
    with pytest.raises(ValueError, match="grad_scaler"):
        fit(job.model, batches(2), manager, loss_fn=loss_of, grad_scaler=job.scaler)
    assert not manager.running
