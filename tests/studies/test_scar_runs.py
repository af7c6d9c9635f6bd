"""The study's forks against real jobs: a recovery manager loses and restores an attached model's shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scar import datasets
from scar.cnn import CNN
from scar.lda import LDA
from scar.mf_als import MFALS
from scar.mf_sgd import MFSGD
from scar.mlr import MLR
from scar.workload import Workload
from scar_study.arms import Arm
from scar_study.blocks import bounds
from scar_study.forks import Fork, Stack, run
from scar_study.trunk import grow
from scar_study.units import history, rolled_back

import cpr_native as cpr

IMAGES = datasets.generated_images(60, seed=1)
RATINGS = datasets.generated_ratings(40, 30, 400, seed=1)
WORKLOADS: dict[str, Workload] = {
    "mlr": MLR(IMAGES, "mnist", iterations=24, lr=0.1, momentum=0.5),
    "als": MFALS(RATINGS, "movielens", iterations=24),
    "sgd": MFSGD(RATINGS, "movielens", iterations=24, lr=1.0),
    "lda": LDA(datasets.generated_documents(40, 60, 20), "reuters", iterations=24, topics=5),
    "cnn": CNN(IMAGES, "mnist", iterations=24, batch=20),
}
PRIORITY = Arm(part="main", policy="priority", lost=0.5)
FAILED, LAST = 17, 21


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", WORKLOADS)
def test_fork_ends_as_the_real_job(name: str, tmp_path: Path) -> None:
    """Half the shards are lost: weights and optimizer state of fork and job are the same to the last bit."""
    workload = WORKLOADS[name]
    model = workload.model()
    optimizer = workload.optimizer(model)
    attachment = cpr.attach(model, blocks=workload.blocks, optimizer=optimizer or ())
    trunk = grow(workload)
    places = bounds(trunk.tables)
    lost = np.zeros(places[-1].stop, np.bool_)
    with attachment, cpr.RecoveryManager(
        model, cpr.CheckpointStore(tmp_path), policy=workload.policy(0.125),
        job=cpr.Job(total_hours=24, mtbf_hours=12, shards=4), target_pls=16 / (4 * 24),
        costs=cpr.Costs(save=0.01, load=0.01, reschedule=0.01), total_samples=24, background=False,
    ) as manager:  # fmt: skip
        assert manager.interval_samples == 2
        manager.start()
        for number in range(LAST):
            workload.step(model, optimizer, number)
            manager.step(1)
            if number + 1 == FAILED:
                manager.recover([1, 2])
        shards = manager.shards
    assert [table.num_embeddings for table in attachment.engine.tables] == [t.rows for t in trunk.tables]
    for shard in (shards[1], shards[2]):
        for rows in shard.ranges:
            lost[places[rows.table]][rows.begin : rows.end] = True
    fork = Fork(lost=lost, saved=history(trunk, PRIORITY, 0)[FAILED])
    assert 0 < lost.sum() < len(lost)
    weights = fork.weights(trunk, FAILED)
    assert any((weights[key] != trunk.weights[key][FAILED]).any() for key in weights)
    stack = Stack(trunk, FAILED, [weights], [fork.states(trunk, FAILED)])
    for _ in range(FAILED, LAST):
        stack.step()
    for ours, real in zip(stack.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours[0], real)
        if optimizer is not None:
            assert stack.optimizer is not None
            _same_state(stack.optimizer.state[ours], optimizer.state[real])


def _same_state(stacked: dict[str, torch.Tensor], real: dict[str, torch.Tensor]) -> None:
    assert stacked.keys() == real.keys()
    for column, entry in real.items():
        if entry is None:
            assert stacked[column] is None
        else:
            assert torch.equal(stacked[column].reshape(entry.shape), entry)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_run_costs_the_same_alone_and_in_a_stack(name: str) -> None:
    trunk = grow(WORKLOADS[name])
    saved = history(trunk, PRIORITY, 0)[FAILED]
    generator = np.random.default_rng(0)
    rows = trunk.tables[0].rows if trunk.workload.aligned else len(saved)
    masks = [generator.random(rows) < share for share in (0.0, 0.3, 0.6)]
    forks = [Fork(lost=np.tile(mask, len(saved) // rows), saved=saved) for mask in masks]
    together = run(trunk, FAILED, forks)
    alone = [run(trunk, FAILED, [fork])[0] for fork in forks]
    assert together[0] == pytest.approx(0.0, abs=1e-3)
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=0.02)


@pytest.mark.parametrize("name", WORKLOADS)
def test_full_recovery_costs_the_iterations_since_the_checkpoint(name: str) -> None:
    assert rolled_back(grow(WORKLOADS[name]), 21, 16) == pytest.approx(5.0, abs=1e-9)


def test_zeroed_state_differs_from_restored_state_in_the_lost_rows_alone() -> None:
    trunk = grow(WORKLOADS["mlr"])
    lost = np.zeros(785, np.bool_)
    lost[300:400] = True
    saved = np.full(785, 8, np.int32)
    restored, zeroed = (
        Fork(lost=lost, saved=saved, state=how).states(trunk, 12) for how in ("restored", "zeroed")
    )
    key = "weight/momentum_buffer"
    momenta = trunk.states[key].reshape(-1, 785, 10)
    assert (zeroed[key].reshape(785, 10)[lost] == 0).all()
    assert np.array_equal(restored[key].reshape(785, 10)[lost], momenta[8][lost])
    assert np.array_equal(zeroed[key].reshape(785, 10)[~lost], momenta[12][~lost])
    assert not np.array_equal(momenta[8][lost], momenta[12][lost])
