"""Partial recovery: the failed shards' rows alone go back to their newest commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    ROWS,
    SAMPLES,
    SHARDS,
    STEPS,
    Arrays,
    Net,
    adam,
    batches,
    dirty_bits,
    in_shard,
    manage,
    rows_of,
    same,
    train_step,
)

from cpr_native.errors import NoCheckpointError
from cpr_native.overhead import Costs, Job
from cpr_native.policy import Full, Mfu, Partial, Policy, Ssu
from cpr_native.recovery import RecoveryManager

# At target PLS 0.0625 and 4 shards: T_save = 2 * 0.0625 * 4 * 20 = 10 hours of one step each.
PLS = 0.0625
POLICIES = {
    "partial": Partial(),
    "mfu": Mfu(fraction=0.25, row_share=0.9),
    "ssu": Ssu(fraction=0.125, row_share=0.9),
}


def trained(
    path: Path, policy: Policy, steps: int, *, optimizer: str = "adagrad", **options: Any
) -> tuple[Net, RecoveryManager]:
    model = Net(OPTIMIZERS[optimizer])
    manager = manage(model, path, policy, target_pls=PLS, background=False, **options)
    manager.start()
    for batch in batches(steps):
        train_step(model, batch)
        manager.step(BATCH)
    return model, manager


def unsaved_counts(model: Net, shards: list[int]) -> int:
    """The truth that the ledger has to equal: the engine's own counters over the shards' rows."""
    engine = model.tables.engine
    pairs = [(table, shard) for table in range(len(ROWS)) for shard in shards]
    return sum(int(engine.counts(table)[in_shard(table, shard)].sum()) for table, shard in pairs)


def part(arrays: Arrays, shard: int, *, inside: bool) -> Arrays:
    """Rows of `shard`, or all others, of the arrays of `rows_of` (weight and state of each table)."""
    chosen = []
    for index, array in enumerate(arrays):
        mask = np.zeros(len(array), np.bool_)
        mask[in_shard(index // 2, shard)] = True
        chosen.append(array[mask == inside])
    return chosen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_only_the_failed_shards_rows_go_back_to_the_committed_ones(tmp_path: Path, optimizer: str) -> None:
    model, manager = trained(tmp_path, Partial(), 10, optimizer=optimizer)
    engine = model.tables.engine
    saved = [engine.weight(table).copy() for table in range(3)]
    states = [engine.state(table) for table in range(3)]
    saved_states = [None if state is None else state.copy() for state in states]
    for batch in batches(3, seed=6):
        train_step(model, batch)
        manager.step(BATCH)
    now = [engine.weight(table).copy() for table in range(3)]
    bits = dirty_bits(model)
    pointers = [engine.weight(table).ctypes.data for table in range(3)]
    step, rate = engine.step, engine.learning_rate
    report = manager.recover([2])
    for table in range(3):
        lost = np.zeros(ROWS[table], np.bool_)
        lost[in_shard(table, 2)] = True
        got = engine.weight(table)
        assert got[lost].tobytes() == saved[table][lost].tobytes()
        assert got[~lost].tobytes() == now[table][~lost].tobytes()
        state = engine.state(table)
        if state is not None:
            assert state[lost].tobytes() == saved_states[table][lost].tobytes()  # type: ignore[index]
    assert same(dirty_bits(model), bits)
    assert [engine.weight(table).ctypes.data for table in range(3)] == pointers
    assert (engine.step, engine.learning_rate) == (step, rate)
    assert report.mode == "partial"
    assert report.rows_restored == sum(
        len(range(*in_shard(table, 2).indices(ROWS[table]))) for table in range(3)
    )
    assert manager.steps == 13
    manager.close()


@pytest.mark.parametrize("name", POLICIES)
def test_lost_lookups_are_the_counters_that_died(tmp_path: Path, name: str) -> None:
    model, manager = trained(tmp_path, POLICIES[name], 13)
    expected = unsaved_counts(model, [0, 3])
    assert expected > 0
    assert manager.recover([3, 0]).lost_lookups == expected
    assert unsaved_counts(model, [0, 3]) == 0
    assert manager.recover([0, 3]).lost_lookups == 0
    train_step(model, batches(1, seed=9)[0])
    manager.step(BATCH)
    expected = unsaved_counts(model, [0])
    assert manager.recover([0]).lost_lookups == expected
    manager.close()


@pytest.mark.parametrize("name", POLICIES)
def test_dense_side_stays_live(tmp_path: Path, name: str) -> None:
    model = Net(OPTIMIZERS["sgd"])
    dense = adam(model)
    manager = manage(model, tmp_path, POLICIES[name], dense=dense, target_pls=PLS)
    manager.start()
    for batch in batches(12):
        train_step(model, batch, dense)
        manager.step(BATCH)
    before = [value.clone() for value in model.mlp.state_dict().values()]
    rng = torch.get_rng_state()
    manager.recover([1])
    assert all(torch.equal(a, b) for a, b in zip(before, model.mlp.state_dict().values(), strict=True))
    assert torch.equal(torch.get_rng_state(), rng)
    manager.close()


@pytest.mark.parametrize("name", ["mfu", "ssu"])
def test_priority_rows_come_back_newer_than_the_base(tmp_path: Path, name: str) -> None:
    model, manager = trained(tmp_path, POLICIES[name], 5)
    for batch in batches(3, seed=4):
        train_step(model, batch)
    manager.save(wait=True)
    assert manager.saves[-1].kind == "priority"
    taken = manager.saves[-1].rows
    at_save = rows_of(model)
    fresh = rows_of(Net(OPTIMIZERS["adagrad"]))
    for batch in batches(4, seed=6):
        train_step(model, batch)
    manager.recover([0])
    got = part(rows_of(model), 0, inside=True)
    newest, initial = part(at_save, 0, inside=True), part(fresh, 0, inside=True)
    from_save = [(a == b).reshape(len(a), -1).all(1) for a, b in zip(got, newest, strict=True)]
    assert 0 < taken < sum(ROWS)
    assert from_save[0].any()
    # The tiny table is not prioritised: saved whole.
    assert from_save[4].all()
    assert from_save[5].all()
    assert not same(got, initial)
    manager.close()


def test_priority_saves_take_the_quota_of_the_large_tables_and_the_others_whole(tmp_path: Path) -> None:
    policy = Mfu(fraction=0.25, row_share=0.7)
    _, manager = trained(tmp_path, policy, 10)
    kinds = [(save.kind, save.reason) for save in manager.saves]
    assert kinds == [("base", "start")] + [("priority", "due")] * 4
    assert manager.saves[0].rows == sum(ROWS)
    for save in manager.saves[1:]:
        assert save.rows <= 100 + ROWS[1] + ROWS[2]
        assert save.rows > ROWS[1] + ROWS[2]
    manager.close()


@pytest.mark.parametrize("name", ["partial", "mfu", "ssu"])
def test_pls_is_lost_lookups_of_all_lookups(tmp_path: Path, name: str) -> None:
    _, manager = trained(tmp_path, POLICIES[name], STEPS - 1)
    report = manager.recover([0])
    lookups = sum(len(batch[0]) for batch in batches(STEPS - 1))
    assert report.pls == pytest.approx(report.lost_lookups / (lookups * STEPS / (STEPS - 1)))
    assert 0 < report.pls == manager.pls
    assert manager.recover([0]).pls == 0
    manager.close()


def test_pls_of_vanilla_with_every_shard_lost_is_that_of_the_samples_since_its_save(tmp_path: Path) -> None:
    _, manager = trained(tmp_path, Partial(), 13)
    lookups = [len(batch[0]) for batch in batches(13)]
    share = sum(lookups[10:]) / sum(lookups)
    assert manager.recover(range(SHARDS)).pls == pytest.approx(share * 13 * BATCH / SAMPLES)
    manager.close()


def test_v8_eval_and_no_grad_lookups_are_neither_saved_nor_counted(tmp_path: Path) -> None:
    model, manager = trained(tmp_path, Partial(), 10)
    engine = model.tables.engine
    ids, offsets, _ = batches(1, seed=6)[0]
    sampled = [engine.sampled_rows(table).tolist() for table in range(3)]
    model.eval()
    model(ids, offsets)
    model.train()
    with torch.no_grad():
        model(ids, offsets)
    model(ids, offsets)  # a forward alone
    assert not any(bits.any() for bits in dirty_bits(model))
    assert unsaved_counts(model, [0, 1, 2, 3]) == 0
    assert [engine.sampled_rows(table).tolist() for table in range(3)] == sampled
    manager.save("delta", wait=True)
    assert manager.saves[-1].rows == 0
    assert manager.recover([0, 1, 2, 3]).lost_lookups == 0
    manager.close()


def test_skipped_updates_are_not_counted_as_lost(tmp_path: Path) -> None:
    model, manager = trained(tmp_path, Partial(), 10)
    ids, offsets, _ = batches(1, seed=6)[0]
    (model(ids, offsets).sum() * float("nan")).backward()
    assert model.tables.skipped_steps == 1
    assert manager.recover([0, 1, 2, 3]).lost_lookups == 0
    manager.close()


def test_overwritten_ids_are_counted_as_they_were_looked_up(tmp_path: Path) -> None:
    model, manager = trained(tmp_path, Partial(), 10)
    ids, offsets, _ = batches(1, seed=6)[0]
    out = model(ids, offsets)
    ids.fill_(0)
    out.sum().backward()
    expected = unsaved_counts(model, [1])
    assert manager.recover([1]).lost_lookups == expected
    manager.close()


def test_benefit_check_falls_back_to_full(tmp_path: Path) -> None:
    costs = Costs(save=0.625, load=0.1, reschedule=0.1, load_partial=9.0)
    model = Net(OPTIMIZERS["sgd"])
    manager = manage(model, tmp_path, Ssu(), costs=costs, target_pls=PLS)
    assert manager.policy == Full()
    assert manager.plan.strategy == "full"
    assert manager.interval_samples == 5 * BATCH
    manager.close()


@pytest.mark.parametrize(
    ("failed", "kind", "match"),
    [
        ([], ValueError, "at least one shard"),
        ([1, 1], ValueError, "each once"),
        ([4], IndexError, "0 to 3"),
        ([-1], IndexError, "0 to 3"),
    ],
)
@pytest.mark.parametrize("policy", [Partial(), Full()], ids=["partial", "full"])
def test_wrong_shards_change_nothing(
    tmp_path: Path, policy: Policy, failed: list[int], kind: type[Exception], match: str
) -> None:
    model, manager = trained(tmp_path, policy, 3)
    before = rows_of(model)
    with pytest.raises(kind, match=match):
        manager.recover(failed)
    assert same(rows_of(model), before)
    assert manager.steps == 3
    manager.close()


def test_unreadable_chain_changes_nothing(tmp_path: Path) -> None:
    model, manager = trained(tmp_path, Partial(), 12)
    before, bits = rows_of(model), dirty_bits(model)
    for segment in (tmp_path / "shards" / "1" / "segments").iterdir():
        segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(NoCheckpointError, match="shards/1"):
        manager.recover([1, 0])
    assert same(rows_of(model), before)
    assert same(dirty_bits(model), bits)
    manager.recover([0])
    manager.close()


def test_more_shards_than_rows(tmp_path: Path) -> None:
    job = Job(total_hours=40.0, mtbf_hours=20.0, shards=12)
    model, manager = trained(tmp_path, Partial(), 4, job=job)
    expected = int(model.tables.engine.counts(2).sum())
    assert expected > 0
    lost = [manager.recover([shard]).lost_lookups for shard in range(12)]
    assert sum(lost) == sum(len(batch[0]) for batch in batches(4))
    manager.close()
