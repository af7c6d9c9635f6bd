from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cpr_native.config import EmbeddingBagConfig
from cpr_native.modules import EmbeddingBagCollection
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Delta, Full, Partial, Policy
from cpr_native.recovery import RecoveryManager, ResumableLoader
from cpr_native.store import CheckpointStore
from cpr_native.train import fit

BATCH, BATCHES, ROWS = 8, 12, 60
JOB = Job(total_hours=24.0, mtbf_hours=8.0, shards=3)
COSTS = Costs(save=0.5, load=0.1, reschedule=0.1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        config = EmbeddingBagConfig(name="t", num_embeddings=ROWS, embedding_dim=4, feature_names=["f"])
        self.tables = EmbeddingBagCollection([config], optimizer=RowWiseAdagrad(lr=0.1), seed=1)
        self.top = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(0, ids.numel() + 1, ids.shape[1])
        out: torch.Tensor = self.top(self.tables(ids.reshape(-1), offsets)).squeeze(1)
        return out


def loss_of(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(0, ROWS, (BATCH * BATCHES, 3), generator=generator)
    return TensorDataset(ids, (ids.sum(1) % 2).float())


def shuffled() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=BATCH, shuffle=True)


def managed(
    model: Net, path: Path, policy: Policy, dense: torch.optim.Optimizer | None, **options: Any
) -> RecoveryManager:
    return RecoveryManager(
        model,
        CheckpointStore(path),
        policy=policy,
        job=JOB,
        costs=COSTS,
        total_samples=2 * BATCH * BATCHES,
        dense_optimizer=dense,
        background=False,
        **options,
    )


def trained(path: Path, policy: Policy, **options: Any) -> tuple[list[torch.Tensor], RecoveryManager]:
    model = Net()
    dense = torch.optim.Adagrad(model.top.parameters(), lr=0.05)
    manager = managed(model, path, policy, dense)
    torch.manual_seed(6)
    with manager:
        steps = fit(model, shuffled(), manager, loss_fn=loss_of, epochs=2, **options)
    assert steps == manager.steps == 2 * BATCHES
    assert manager.samples == 2 * BATCHES * BATCH
    return [value.detach().clone() for value in model.state_dict().values()], manager


def plain() -> list[torch.Tensor]:
    """The same training as a loop of a few lines."""
    model = Net()
    dense = torch.optim.Adagrad(model.top.parameters(), lr=0.05)
    torch.manual_seed(6)
    for _ in range(2):
        for batch in shuffled():
            dense.zero_grad()
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            dense.step()
    return list(model.state_dict().values())


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_fit_is_the_plain_loop(tmp_path: Path) -> None:
    assert equal(trained(tmp_path, Full())[0], plain())


@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
def test_failures_in_any_epoch_of_a_shuffling_loader_replay_to_the_same_bits(
    tmp_path: Path, policy: Policy
) -> None:
    schedule = {2: [0], BATCHES - 1: [1], BATCHES: [2], BATCHES + 1: [0, 1, 2], 2 * BATCHES: [1]}
    got, manager = trained(tmp_path, policy, failures=lambda step: schedule.pop(step, ()))
    assert schedule == {}
    assert len(manager.recoveries) == 5
    assert equal(got, plain())


def test_partial_failures_go_on_without_replay(tmp_path: Path) -> None:
    seen: list[int] = []
    schedule = {5: [0], 20: [2]}
    _, manager = trained(
        tmp_path,
        Partial(),
        failures=lambda step: schedule.pop(step, ()),
        callbacks=[lambda step, loss: seen.append(step)],
    )
    assert seen == list(range(1, 2 * BATCHES + 1))
    assert [report.step for report in manager.recoveries] == [5, 20]


def test_callbacks_get_step_and_loss_and_see_steps_again_after_a_rollback(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []
    schedule = {7: [1]}
    trained(
        tmp_path,
        Full(),
        failures=lambda step: schedule.pop(step, ()),
        callbacks=[lambda step, loss: seen.append((step, loss))],
    )
    steps = [step for step, _ in seen]
    assert steps[:7] == list(range(1, 8))
    assert steps[7] <= 7
    assert steps[-1] == 2 * BATCHES
    again = [loss for step, loss in seen if step == 7]
    assert len(again) == 2
    assert again[0] == again[1]


@pytest.mark.parametrize("stop", [3, BATCHES, 17])
def test_resume_in_a_new_process_ends_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    class Stop(Exception):
        pass

    def stopping(step: int, loss: float) -> None:
        if step == stop:
            raise Stop

    with pytest.raises(Stop):
        trained(tmp_path, Delta(), callbacks=[stopping])
    got, manager = trained(tmp_path, Delta())
    assert manager.recoveries[0].restart
    assert equal(got, plain())


def test_no_resume_on_a_used_store_raises(tmp_path: Path) -> None:
    trained(tmp_path, Full())
    with pytest.raises(ValueError, match="holds commits already"):
        trained(tmp_path, Full(), resume=False)


def test_batch_size_is_of_the_users_choice(tmp_path: Path) -> None:
    model = Net()
    manager = managed(model, tmp_path, Full(), None)
    fit(model, shuffled(), manager, loss_fn=loss_of, batch_size_of=lambda batch: 1)
    assert manager.samples == BATCHES
    manager.close()


def test_own_optimizer_steps_the_dense_parameters(tmp_path: Path) -> None:
    model = Net()
    before = model.top.weight.detach().clone()
    manager = managed(model, tmp_path, Full(), None)
    fit(model, shuffled(), manager, loss_fn=loss_of)
    assert torch.equal(model.top.weight, before)
    optimizer = torch.optim.SGD(model.top.parameters(), lr=0.1)
    other = Net()
    own = torch.optim.SGD(other.top.parameters(), lr=0.1)
    with managed(other, tmp_path / "own", Full(), None) as manager:
        fit(other, shuffled(), manager, loss_fn=loss_of, dense_optimizer=own)
    assert not torch.equal(other.top.weight, before)
    assert optimizer is not own


def test_own_optimizer_goes_back_with_a_full_recovery(tmp_path: Path) -> None:
    model = Net()
    own = torch.optim.Adagrad(model.top.parameters(), lr=0.05)
    schedule = {BATCHES + 3: [1]}
    torch.manual_seed(6)
    with managed(model, tmp_path, Full(), None) as manager:
        fit(
            model, shuffled(), manager, loss_fn=loss_of, dense_optimizer=own, epochs=2,
            failures=lambda step: schedule.pop(step, ()),
        )  # fmt: skip
    assert manager.dense_optimizer is own
    assert equal(list(model.state_dict().values()), plain())


def test_loader_of_a_running_manager_stays(tmp_path: Path) -> None:
    model = Net()
    with managed(model, tmp_path, Full(), None) as manager:
        loader = ResumableLoader(shuffled())
        fit(model, loader, manager, loss_fn=loss_of)
        with pytest.raises(ValueError, match="started manager cannot be replaced"):
            fit(model, shuffled(), manager, loss_fn=loss_of)
        assert manager.loader is loader
