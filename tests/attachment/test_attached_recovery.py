"""An attached model with its torch optimizers is saved by increments, restored and recovered in part."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attachment.attached_jobs import (
    BATCH,
    COSTS,
    JOB,
    OPAQUE,
    OPTIMIZERS,
    ROWS,
    SHARDS,
    STEPS,
    Run,
    batches,
    copied,
    loss_of,
    same,
)

from cpr_native import Delta, Full, Mfu, Partial, Ssu, fit
from cpr_native.attachment import attach
from cpr_native.policy import Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import decode
from cpr_native.store import CheckpointStore

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")

ALL = {**OPTIMIZERS, **OPAQUE}


def block(table: int) -> int:
    return math.ceil(ROWS[table] / SHARDS)


def in_shard(table: int, shard: int) -> slice:
    return slice(shard * block(table), min(ROWS[table], (shard + 1) * block(table)))


def through(name: str) -> Run:
    run = Run(*ALL[name])
    torch.manual_seed(7)
    for batch in batches():
        run.step(batch)
    return run


@pytest.mark.parametrize("policy", [Full(), Delta()], ids=["full", "delta"])
@pytest.mark.parametrize("name", ALL)
def test_v24_resumed_with_new_objects_equals_training_through(
    tmp_path: Path, name: str, policy: Policy
) -> None:
    half = STEPS // 2
    first = Run(*ALL[name])
    torch.manual_seed(7)
    with first.manager(tmp_path, policy) as manager:
        for batch in batches()[:half]:
            first.step(batch)
            manager.step(BATCH)
    torch.manual_seed(99)
    second = Run(*ALL[name])
    manager = second.manager(tmp_path, policy)
    report = manager.resume()
    assert report is not None
    assert report.step == half
    assert same(second.everything(), first.everything())
    for batch in batches()[half:]:
        second.step(batch)
        manager.step(BATCH)
    manager.close()
    assert same(second.everything(), through(name).everything())


@pytest.mark.parametrize("name", ALL)
def test_full_recovery_ends_bit_equal(tmp_path: Path, name: str) -> None:
    run = Run(*ALL[name])
    torch.manual_seed(7)
    failures = {3: [1], 9: [0, 3]}
    with run.manager(tmp_path, Delta()) as manager:
        manager.start()
        while manager.steps < STEPS:
            run.step(batches()[manager.steps])
            manager.step(BATCH)
            if manager.steps in failures:
                manager.recover(failures.pop(manager.steps))
    assert same(run.everything(), through(name).everything())


@pytest.mark.parametrize("policy", [Partial(), Mfu(), Ssu()], ids=lambda p: p.name)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_partial_recovery_restores_rows_with_their_state_and_no_others(
    tmp_path: Path, name: str, policy: Policy
) -> None:
    run = Run(*OPTIMIZERS[name])
    manager = run.manager(tmp_path, policy)
    manager.start()
    manager.flush()
    for batch in batches()[:4]:
        run.step(batch)
    manager.save("delta", wait=True)
    saved = [run.records(table) for table in (0, 1)]
    assert saved[0].shape[1] == (1 + len(run.attachment._states[0].layout or ())) * 4
    for batch in batches()[4:7]:
        run.step(batch)  # without a step of the manager: no other save is due
    now = [run.records(table) for table in (0, 1)]
    lost = sum(int(run.attachment.engine.counts(table)[in_shard(table, 2)].sum()) for table in (0, 1))
    steps = [run.optimizers[0].state[weight].get("step") for weight in run.model.tables()]
    report = manager.recover([2])
    assert report.lost_lookups == lost > 0
    for table in (0, 1):
        rows = np.zeros(ROWS[table], np.bool_)
        rows[in_shard(table, 2)] = True
        after = run.records(table)
        assert after[rows].tobytes() == saved[table][rows].tobytes()
        assert after[~rows].tobytes() == now[table][~rows].tobytes()
    assert [run.optimizers[0].state[weight].get("step") for weight in run.model.tables()] == steps
    assert not same(saved[0].tolist(), now[0].tolist())
    run.step(batches()[8])
    manager.step(BATCH)
    manager.close()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_failure_after_the_first_step_restores_the_state_torch_had_made(tmp_path: Path, name: str) -> None:
    """The base was taken before torch made any state: torch's tensors go back to what they begin with."""
    run = Run(*OPTIMIZERS[name])
    manager = run.manager(tmp_path, Partial())
    manager.start()
    run.step(batches()[0])
    manager.step(BATCH)
    manager.recover(list(range(SHARDS)))
    columns = run.attachment._states[0].layout or ()
    for table in (0, 1):
        state = run.records(table)[:, 4:]
        for number, column in enumerate(columns):
            assert (state[:, 4 * number : 4 * number + 4] == np.float32(column.initial)).all()
    run.step(batches()[1])
    manager.close()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_state_is_saved_once(tmp_path: Path, name: str) -> None:
    run = Run(*OPTIMIZERS[name])
    with run.manager(tmp_path, Full()) as manager:
        run.step(batches()[0])
        manager.step(BATCH)
    dense = decode(bytes(CheckpointStore(tmp_path).latest("exact").dense()["state"]))
    assert not [key for key in dense["model"] if key.startswith(("bag", "items"))]
    states = [dense["optimizer"], *(state for _, state in dense["table_optimizers"])]
    values = [v for state in states for entry in state["state"].values() for v in entry.values()]
    shapes = {tuple(value.shape) for value in values if isinstance(value, torch.Tensor)}
    assert not {(rows, 4) for rows in ROWS} & shapes


def test_a_delta_holds_the_rows_that_changed(tmp_path: Path) -> None:
    run = Run(*OPTIMIZERS["adagrad"])
    manager = run.manager(tmp_path, Delta())
    manager.start()
    manager.flush()
    run.step(batches()[0])
    manager.step(BATCH)
    manager.save("delta", wait=True)
    ids = batches()[0][0]
    expected = len(set(ids[:, :3].reshape(-1).tolist())) + len(set((ids[:, 3] % ROWS[1]).tolist()))
    assert manager.saves[-1].rows == expected
    manager.close()


@pytest.mark.parametrize("name", OPAQUE)
def test_partial_recovery_is_refused_where_state_is_not_of_rows(tmp_path: Path, name: str) -> None:
    run = Run(*OPAQUE[name])
    with pytest.raises(ValueError, match="table 'bag' isn't trained by one whose state has rows"):
        run.manager(tmp_path, Partial())
    assert list(tmp_path.iterdir()) == []


def test_partial_recovery_needs_the_optimizer(tmp_path: Path) -> None:
    run = Run(True, lambda net: [torch.optim.SGD(net.top.parameters(), lr=0.1)])
    with pytest.raises(ValueError, match=r"table 'bag' isn't trained by an optimizer passed to attach\(\)"):
        run.manager(tmp_path, Mfu())
    run.model.bag.requires_grad_(False)
    run.model.items.requires_grad_(False)
    run.attachment.detach()
    with pytest.raises(ValueError, match="convert the model or attach it"):
        run.manager(tmp_path, Mfu())


@pytest.mark.parametrize("name", ["adam", "sparse_adam"])
def test_fit_steps_all_optimizers(tmp_path: Path, name: str) -> None:
    run = Run(*OPTIMIZERS[name])
    torch.manual_seed(7)
    with run.manager(tmp_path, Delta()) as manager:
        assert manager.optimizers == tuple(reversed(run.optimizers))
        failures = {6: [1]}
        fit(run.model, batches(), manager, loss_fn=loss_of, failures=lambda step: failures.pop(step, ()))
    assert same(run.everything(), through(name).everything())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_tables_of_other_dtypes_resume_bit_equal(tmp_path: Path, dtype: torch.dtype, kind: Any) -> None:
    def job() -> tuple[torch.nn.Embedding, torch.optim.Optimizer, RecoveryManager]:
        torch.manual_seed(1)
        model = torch.nn.Embedding(ROWS[0], 4, dtype=dtype)
        optimizer = kind(model.parameters(), lr=0.1)
        attach(model, optimizer=optimizer)
        options: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": BATCH * STEPS}
        return model, optimizer, RecoveryManager(model, CheckpointStore(tmp_path), policy=Delta(), **options)

    def train(model: torch.nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
        for ids, _ in batches()[:3]:
            optimizer.zero_grad()
            model(ids).sin().sum().backward()
            optimizer.step()

    model, optimizer, manager = job()
    with manager:
        train(model, optimizer)
        manager.step(BATCH)
    other, second, manager = job()
    manager.resume()
    assert same(copied(second.state_dict()), copied(optimizer.state_dict()))
    for each in (model, optimizer), (other, second):
        train(*each)
    assert same(model.weight.detach(), other.weight.detach())
    manager.close()


def test_another_optimizer_than_the_saved_one_is_refused(tmp_path: Path) -> None:
    run = Run(*OPTIMIZERS["sgd"])
    run.manager(tmp_path, Delta()).close()
    with run.manager(tmp_path, Delta()) as manager:
        manager.start()
    other = Run(True, lambda net: [torch.optim.Rprop(net.tables()), *OPTIMIZERS["sgd"][1](net)[1:]])
    with pytest.raises(ValueError, match=r"state_columns|tables' optimizer is a"):
        other.manager(tmp_path, Delta()).resume()


def test_options_that_would_change_the_record_are_refused_at_the_save(tmp_path: Path) -> None:
    run = Run(*OPTIMIZERS["momentum"])
    manager = run.manager(tmp_path, Delta())
    manager.start()
    manager.flush()
    run.optimizers[0].param_groups[0]["momentum"] = 0.0
    with pytest.raises(
        ValueError, match=r"table 'bag': optimizer state: expected \['momentum_buffer'\].*got \[\]"
    ):
        manager.save(wait=True)


def test_an_optimizer_that_was_dropped_or_replaced_is_noticed_at_the_save(tmp_path: Path) -> None:
    run = Run(*OPTIMIZERS["adagrad"])
    manager = run.manager(tmp_path, Delta())
    manager.start()
    manager.flush()
    first, run.optimizers[0] = run.optimizers[0], torch.optim.SparseAdam(run.model.tables())
    run.step(batches()[0])
    with pytest.raises(ValueError, match=r"another optimizer \(SparseAdam\) updated it than the Adagrad"):
        manager.save(wait=True)
    del first
    gc.collect()
    with pytest.raises(ValueError, match="the optimizer it was attached with is gone"):
        manager.save(wait=True)


def test_described_for_the_manager() -> None:
    run = Run(*OPTIMIZERS["sparse_adam"])
    described = TrainedCollection(run.model)
    assert described.keys == {"bag.weight", "items.weight"}
    assert [(table.name, table.rows, table.dim) for table in described.schema.tables] == [
        ("bag", 61, 4),
        ("items", 24, 4),
    ]
    assert described.schema.optimizer == "none"
    run.attachment.detach()
    with pytest.raises(ValueError, match="convert the model or attach it"):
        TrainedCollection(run.model)
