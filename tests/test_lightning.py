"""`RecoveryCallback` under a real Trainer: the same bits after a kill, at the right places."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning_job as job
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

import cpr_native as cpr
from cpr_native.attachment import attachments_of
from cpr_native.lightning import EpochLoader, RecoveryCallback, batch_size


@pytest.fixture(autouse=True)
def quiet() -> None:
    job.quiet()


class Stopped(Exception):
    """The job was interrupted."""


def stop() -> None:
    raise Stopped


def everything(trainer: Trainer, model: job.Net) -> dict[str, Any]:
    optimizer = trainer.optimizers[0].state_dict()
    return {
        **{key: value.clone() for key, value in model.state_dict().items()},
        **{f"{at}.{key}": value for at, of in optimizer["state"].items() for key, value in of.items()},
        "lr": torch.tensor(optimizer["param_groups"][0]["lr"]),
        "steps": torch.tensor(trainer.global_step),
        "rng": torch.get_rng_state(),
    }


def differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    assert left.keys() == right.keys()
    return [key for key in left if not torch.equal(left[key], right[key])]


def finished(folder: Path, model: job.Net, **options: Any) -> tuple[dict[str, Any], RecoveryCallback]:
    callback = job.callback(folder)
    return everything(job.run(model, callback, **options), model), callback


def interrupted(folder: Path, batch: int, model: job.Net, **options: Any) -> None:
    with pytest.raises(Stopped):
        job.run(model, job.callback(folder), job.Interrupt(batch, stop), **options)


def test_kill_in_the_middle_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(job.__file__)), str(tmp_path / "killed"), "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole, _ = finished(tmp_path / "whole", job.Net(), accumulate_grad_batches=2)
    resumed, callback = finished(tmp_path / "killed", job.Net(), accumulate_grad_batches=2)
    assert differing(whole, resumed) == []
    assert callback.manager is not None
    assert [report.restart for report in callback.manager.recoveries] == [True]
    assert 0 < callback.manager.recoveries[0].step < 10


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        (3, {}),
        (7, {}),  # the first of the second epoch
        (13, {"val_check_interval": 3}),
        (14, {"accumulate_grad_batches": 2}),  # the first of the third
        (16, {"accumulate_grad_batches": 3}),
        (10, {"max_steps": 15}),
    ],
)
def test_resume_from_any_batch_ends_with_the_same_bits(
    tmp_path: Path, batch: int, options: dict[str, Any]
) -> None:
    interrupted(tmp_path / "stopped", batch, job.Net(), **options)
    whole, _ = finished(tmp_path / "whole", job.Net(), **options)
    resumed, callback = finished(tmp_path / "stopped", job.Net(), **options)
    assert callback.manager is not None
    assert callback.manager.recoveries[0].restart
    assert differing(whole, resumed) == []


def test_tables_of_the_engine_resume_to_the_same_bits(tmp_path: Path) -> None:
    interrupted(tmp_path / "stopped", 9, job.Net(engine=True))
    whole, _ = finished(tmp_path / "whole", job.Net(engine=True))
    resumed, _ = finished(tmp_path / "stopped", job.Net(engine=True))
    assert differing(whole, resumed) == []


def test_a_gradient_scaler_is_saved_and_told_to_the_tables(tmp_path: Path) -> None:
    def run(folder: str, *callbacks: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=3)
        precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
        model = job.Net(engine=True)
        job.run(model, job.callback(tmp_path / folder), *callbacks, plugins=[precision])
        return model.state_dict(), scaler.state_dict()

    with pytest.raises(Stopped):
        run("stopped", job.Interrupt(9, stop))
    whole, resumed = run("whole"), run("stopped")
    assert differing(whole[0], resumed[0]) == []
    assert whole[1] == resumed[1]
    assert whole[1]["scale"] > 512.0
    unscaled, _ = finished(tmp_path / "unscaled", job.Net(engine=True))
    torch.testing.assert_close(whole[0]["table.weight"], unscaled["table.weight"], atol=0.02, rtol=0)


def test_steps_and_samples_are_those_of_the_optimizer(tmp_path: Path) -> None:
    """7 batches of 4, the last of 3 samples: by twos 8, 8, 8 and 3 samples a step."""
    model = job.Net()
    _, callback = finished(tmp_path, model, accumulate_grad_batches=2)
    manager = callback.manager
    assert manager is not None
    assert (manager.steps, manager.samples) == (4 * job.EPOCHS, job.SAMPLES * job.EPOCHS)
    boundaries = {epoch * job.SAMPLES + part for epoch in range(job.EPOCHS) for part in (0, 8, 16, 24, 27)}
    assert {save.samples for save in manager.saves} <= boundaries
    assert manager.saves[-1].samples == job.SAMPLES * job.EPOCHS, "the rest is committed"
    assert not manager.running
    assert attachments_of(model) == [], "attached for the time of fit"


def test_a_finished_job_trains_no_more(tmp_path: Path) -> None:
    whole, _ = finished(tmp_path, job.Net())
    again, callback = finished(tmp_path, job.Net())
    del whole["rng"], again["rng"]
    assert differing(whole, again) == []
    assert callback.manager is not None
    assert callback.manager.steps == job.BATCHES * job.EPOCHS


def test_a_shard_is_recovered_between_two_batches(tmp_path: Path) -> None:
    callback = job.callback(tmp_path, cpr.Scar(fraction=0.5), target_pls=0.3)
    model = job.Net()
    reports = []

    def fail() -> None:
        assert callback.manager is not None
        callback.manager.save("base", wait=True)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        reports.append(callback.recover([0]))
        changed = differing(before, dict(model.state_dict()))
        assert changed, "shard 1 keeps what it has"
        rows = model.state_dict()["table.weight"] == before["table.weight"]
        assert rows[:10].all()
        assert not rows[10:].any()

    job.run(model, callback, job.Interrupt(8, fail))
    assert [report.mode for report in reports] == ["partial"]
    with pytest.raises(ValueError, match="between two batches"):
        callback.recover([0])


def test_full_recovery_within_fit_is_refused(tmp_path: Path) -> None:
    callback = job.callback(tmp_path)
    with pytest.raises(ValueError, match=r"start fit\(\) again"):
        job.run(job.Net(), callback, job.Interrupt(2, lambda: callback.recover([0])))


def test_losses_reach_the_loop(tmp_path: Path) -> None:
    from cpr_native.iteration_cost import IterationLoop

    callback = job.callback(tmp_path, cpr.Scar(fraction=0.5), target_pls=0.3, loop=IterationLoop())
    job.run(job.Net(), callback, accumulate_grad_batches=2)
    assert callback.manager is not None
    noted = callback.manager.pace.state_dict()["iteration_loop"]["loop"]["estimator"]["losses"]
    assert len(noted["means"]) == 4 * job.EPOCHS


def test_a_loader_without_a_position_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="EpochLoader of it"):
        job.run(job.Net(), job.callback(tmp_path), loader=DataLoader(job.data(), batch_size=4))


def test_a_loader_with_its_own_position_is_taken(tmp_path: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        return StatefulDataLoader(job.data(), batch_size=4, shuffle=True)

    with pytest.raises(ValueError, match="keeps its own position"):
        EpochLoader(loader())
    with pytest.raises(Stopped):
        job.run(job.Net(), job.callback(tmp_path / "a"), job.Interrupt(9, stop), loader=loader())
    whole, _ = finished(tmp_path / "b", job.Net(), loader=loader())
    resumed, _ = finished(tmp_path / "a", job.Net(), loader=loader())
    assert differing(whole, resumed) == []


def test_checkpoints_of_both_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.ckpt"
    job.run(job.Net(), max_steps=2).save_checkpoint(path)
    with pytest.raises(ValueError, match="expected no ckpt_path"):
        job.run(job.Net(), job.callback(tmp_path / "store"), ckpt_path=str(path))


def test_samples_of_a_batch() -> None:
    assert batch_size({"scale": torch.tensor(1.0), "ids": torch.zeros(5, 2)}) == 5
    with pytest.raises(ValueError, match="batch_size_of"):
        batch_size("text")
