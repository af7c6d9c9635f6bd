"""A job whose checkpoint is in a bucket: another machine, which has nothing, goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from recovery.jobs import (
    BATCH,
    COSTS,
    JOB,
    OPTIMIZERS,
    SAMPLES,
    STEPS,
    Net,
    adam,
    batch_size,
    batches,
    everything,
    loss_of,
    rows_of,
    same,
    train_step,
)

from cpr_native.policy import Delta, Partial, Policy
from cpr_native.recovery import RecoveryManager, ResumableLoader
from cpr_native.store import CheckpointStore
from cpr_native.train import fit


def manager_of(model: Net, store: CheckpointStore, policy: Policy, **more: Any) -> RecoveryManager:
    return RecoveryManager(model, store, policy=policy, job=JOB, costs=COSTS, total_samples=SAMPLES, **more)


def test_goes_on_elsewhere_to_the_same_bits(s3_bucket: str, tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    dense = adam(model)
    torch.manual_seed(7)
    for batch in batches():
        train_step(model, batch, dense)
    expected = everything(model, dense)

    url = f"s3://{s3_bucket}/jobs/1"
    model = Net(OPTIMIZERS["adagrad"])
    dense = adam(model)
    loader = ResumableLoader(batches())
    manager = manager_of(
        model,
        CheckpointStore(url, cache=tmp_path / "a"),
        Delta(),
        dense_optimizer=dense,
        loader=loader,
        keep=2,
        background=False,
    )
    torch.manual_seed(7)
    manager.start()
    for batch in loader:
        train_step(model, batch, dense)
        manager.step(BATCH)
        if manager.steps == STEPS // 2 + 1:
            break
    manager.flush()
    manager.__exit__(KeyboardInterrupt)  # as a crash would

    model = Net(OPTIMIZERS["adagrad"])
    dense = adam(model)
    there = CheckpointStore(url, cache=tmp_path / "b")
    with manager_of(model, there, Delta(), dense_optimizer=dense, keep=2) as manager:
        fit(model, batches(), manager, loss_fn=loss_of, batch_size_of=batch_size)
    (report,) = manager.recoveries
    assert report.restart
    assert 0 < report.step <= STEPS // 2 + 1
    assert same(everything(model, dense), expected)


def test_partial_recovery_of_a_shard_from_the_bucket(s3_bucket: str, tmp_path: Path) -> None:
    url = f"s3://{s3_bucket}/jobs/2"
    model = Net(OPTIMIZERS["sgd"])
    with manager_of(model, CheckpointStore(url, cache=tmp_path / "a"), Partial(), target_pls=0.9) as manager:
        manager.start()
        for batch in batches()[:9]:
            train_step(model, batch)
            manager.step(BATCH)
        manager.save("base", wait=True)
        saved = rows_of(model)
    model = Net(OPTIMIZERS["sgd"])
    with manager_of(model, CheckpointStore(url, cache=tmp_path / "b"), Partial(), target_pls=0.9) as manager:
        assert manager.resume(required=True) is not None
        assert same(rows_of(model), saved)
        report = manager.recover([1])
        assert report.mode == "partial"
        assert same(rows_of(model), saved)
