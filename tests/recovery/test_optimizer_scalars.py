"""V24: every scalar of every optimizer, schedules and the gradient scaler are saved and put back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_cases import OPTIMIZERS
from recovery.jobs import Net, batch_size, batches, everything, loss_of, manage, same
from torch.optim import lr_scheduler

from cpr_native.config import DataType
from cpr_native.optim import SGD, Adam, FusedOptimizer, RowWiseAdagrad
from cpr_native.policy import Delta, Full, Partial, Policy
from cpr_native.recovery import RecoveryManager

BEFORE, AFTER = 9, 7
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)


@dataclass
class Training:
    """A model with everything that a loop has: optimizers, a schedule of each, a gradient scaler."""

    model: Net
    dense: torch.optim.Optimizer
    schedule: Any
    dense_schedule: Any
    scaler: torch.amp.GradScaler

    @property
    def app_state(self) -> dict[str, Any]:
        return {"tables": self.schedule, "dense": self.dense_schedule, "scaler": self.scaler}

    def step(self, batch: Any, *, infinite: bool = False) -> None:
        self.dense.zero_grad()
        self.model.tables.grad_scale = 1.0 / self.scaler.get_scale()
        loss = loss_of(self.model, batch) * (float("inf") if infinite else 1.0)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.dense)
        self.scaler.update()
        self.schedule.step()
        self.dense_schedule.step()

    def scalars(self) -> list[Any]:
        states = [repr(member.state_dict()) for member in self.app_state.values()]
        return [self.model.tables.optimizer_scalars(), *states]


def training(optimizer: FusedOptimizer, data_type: DataType = DataType.FP32) -> Training:
    model = Net(optimizer, data_type=data_type)
    handle = model.tables.fused_optimizer
    dense = torch.optim.Adam(model.mlp.parameters(), lr=0.01)
    schedule: Any
    if "betas" in handle.defaults:
        schedule = lr_scheduler.OneCycleLR(handle, max_lr=0.2, total_steps=40)
    else:
        # Its next rate depends on the last one: rounding it to float32 in a save would show.
        schedule = lr_scheduler.CosineAnnealingLR(handle, T_max=11)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    return Training(model, dense, schedule, lr_scheduler.MultiStepLR(dense, [4, 12]), scaler)


def managed(job: Training, path: Path, policy: Policy, **options: Any) -> RecoveryManager:
    return manage(job.model, path, policy, dense=job.dense, app_state=job.app_state, **options)


def run(job: Training, steps: range, manager: RecoveryManager | None = None) -> None:
    given = batches(BEFORE + AFTER)
    for number in steps:
        job.step(given[number], infinite=number == 5)
        if manager is not None:
            manager.step(batch_size(given[number]))


@each_optimizer
@pytest.mark.parametrize(
    ("policy", "data_type"),
    [(Full(), DataType.FP32), (Delta(), DataType.FP32), (Delta(), DataType.BF16), (Full(), DataType.FP16)],
    ids=["full", "delta", "delta_bf16", "full_fp16"],
)
def test_v24_training_after_a_restart_equals_training_through(
    tmp_path: Path, policy: Policy, data_type: DataType, optimizer: FusedOptimizer
) -> None:
    through = training(optimizer, data_type)
    run(through, range(BEFORE + AFTER))
    first = training(optimizer, data_type)
    with managed(first, tmp_path, policy) as manager:
        manager.start()
        run(first, range(BEFORE), manager)
    second = training(optimizer, data_type)
    with managed(second, tmp_path, policy) as manager:
        report = manager.resume()
        assert report is not None
        assert report.step == BEFORE
        assert second.scalars() == first.scalars()
        run(second, range(BEFORE, BEFORE + AFTER), manager)
    assert second.scalars() == through.scalars()
    assert second.model.tables.skipped_steps == 1
    continued, expected = everything(second.model, second.dense), everything(through.model, through.dense)
    assert same(continued, expected)


@each_optimizer
def test_v24_a_full_recovery_puts_scalars_back(tmp_path: Path, optimizer: FusedOptimizer) -> None:
    through = training(optimizer)
    run(through, range(BEFORE))
    job = training(optimizer)
    with managed(job, tmp_path, Full(), background=False) as manager:
        manager.start()
        history = [job.scalars()]
        for number in range(BEFORE):
            run(job, range(number, number + 1), manager)
            history.append(job.scalars())
        report = manager.recover([1])
        assert 0 < report.step < BEFORE
        assert job.scalars() == history[report.step] != history[BEFORE]
        assert job.model.tables.learning_rate == job.model.tables.fused_optimizer.param_groups[0]["lr"]
        run(job, range(report.step, BEFORE), manager)
    assert job.scalars() == through.scalars()
    continued, expected = everything(job.model, job.dense), everything(through.model, through.dense)
    assert same(continued, expected)


def test_v24_a_partial_recovery_leaves_scalars_live(tmp_path: Path) -> None:
    job = training(RowWiseAdagrad(lr=0.05))
    with managed(job, tmp_path, Partial(), target_pls=0.0625) as manager:
        assert manager.policy.recovery == "partial"
        manager.start()
        run(job, range(BEFORE), manager)
        before = job.scalars()
        manager.recover([2])
        assert job.scalars() == before


def test_v24_hyperparameters_are_saved_as_the_numbers_they_are(tmp_path: Path) -> None:
    job = training(Adam(lr=0.1))
    job.model.tables.fused_optimizer.param_groups[0].update(
        lr=1 / 3, betas=(0.7, 1 / 7), eps=1e-5, weight_decay=0.3
    )
    with managed(job, tmp_path, Full()) as manager:
        manager.start()
    again = training(Adam(lr=0.1))
    with managed(again, tmp_path, Full()) as manager:
        manager.resume()
    group = again.model.tables.fused_optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"]) == (1 / 3, (0.7, 1 / 7), 1e-5)
    assert group["weight_decay"] == 0.3
    assert again.model.tables.engine.weight_decay == np.float32(0.3)


class Stubborn:
    """State that cannot be loaded."""

    def state_dict(self) -> dict[str, Any]:
        return {"a": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise RuntimeError("stubborn")


def test_state_that_a_member_refuses_changes_nothing(tmp_path: Path) -> None:
    job = training(SGD(lr=0.1))
    members = {**job.app_state, "stubborn": Stubborn()}
    manager = manage(job.model, tmp_path, Full(), dense=job.dense, app_state=members)
    manager.start()
    run(job, range(3), manager)
    rows, scalars = everything(job.model, job.dense), job.scalars()
    with pytest.raises(RuntimeError, match="stubborn"):
        manager.recover([0])
    assert job.scalars() == scalars
    assert same(everything(job.model, job.dense), rows)
    manager.__exit__(RuntimeError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda members: members.pop("dense"), r"\['scaler', 'tables'\], the checkpoint \['dense', "),
        (lambda members: members.update(more=Stubborn()), r"the manager has \['dense', 'more',"),
        (lambda members: members.update(tables=Stubborn()), r"\['tables'\] is a .*Stubborn here, a torch"),
    ],
)
def test_other_members_than_saved_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    first = training(SGD(lr=0.1))
    with managed(first, tmp_path, Full()) as manager:
        manager.start()
    second = training(SGD(lr=0.1))
    members = second.app_state
    change(members)
    before = everything(second.model, second.dense)
    manager = manage(second.model, tmp_path, Full(), dense=second.dense, app_state=members)
    with pytest.raises(ValueError, match=message):
        manager.resume()
    assert same(everything(second.model, second.dense), before)


def test_what_cannot_be_saved_is_refused_at_once(tmp_path: Path) -> None:
    job = training(SGD(lr=0.1))
    handle = job.model.tables.fused_optimizer
    with pytest.raises(ValueError, match="saved with the rows"):
        manage(job.model, tmp_path, Full(), app_state={"tables": handle})
    with pytest.raises(ValueError, match="saved with the rows"):
        manage(job.model, tmp_path, Full(), dense=handle)
    with pytest.raises(TypeError, match=r"app_state: expected names .* got 'a': int"):
        manage(job.model, tmp_path, Full(), app_state={"a": 1})
    manager = managed(job, tmp_path, Full())
    with pytest.raises(ValueError, match="saved with the rows"):
        manager.dense_optimizer = handle
    assert list(tmp_path.iterdir()) == []
    manager.start()
    manager.app_state = job.app_state
    with pytest.raises(ValueError, match="app_state of a started manager"):
        manager.app_state = {}
    assert list(manager.app_state) == ["tables", "dense", "scaler"]
    manager.close()
