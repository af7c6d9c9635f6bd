"""A manager over tables on a device: saves, failures and restarts are those of tables on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_memory import ON_GPU, place_for_test
from recovery.device_jobs import DeviceNet, everything, lookups_of, rows_of, tracked, train, whole
from recovery.jobs import BATCH, ROWS, SHARDS, batch_size, batches, in_shard, loss_of, same
from recovery.towers import dense_of, engine_modules, manage

from cpr_native.config import DataType
from cpr_native.optim import SGD, Adagrad, Adam, FusedOptimizer, PartialRowWiseAdam
from cpr_native.policy import Delta, Drift, Full, Mfu, Partial, Policy, Random, Scar, Ssu
from cpr_native.recovery.export import export
from cpr_native.store import CheckpointStore
from cpr_native.train import fit

POLICIES: dict[str, Policy] = {
    "full": Full(),
    "delta": Delta(),
    "partial": Partial(),
    "mfu": Mfu(fraction=0.25, row_share=0.9),
    "ssu": Ssu(fraction=0.125, row_share=0.9),
    "drift": Drift(fraction=0.25, row_share=0.9),
    "scar": Scar(fraction=0.25, row_share=0.9),
    "random": Random(fraction=0.25, row_share=0.9),
    "delta_partial": Delta(recovery="partial", interval_fraction=0.25),
}
FAILURES = {7: [1], 23: [0, 3]}
OPTIMIZERS: dict[str, FusedOptimizer] = {
    "sgd": SGD(lr=0.05),
    "adagrad": Adagrad(lr=0.05),
    "adam": Adam(lr=0.05),
    "partial_adam": PartialRowWiseAdam(lr=0.05),
}


def job(model: DeviceNet, path: Path, policy: Policy, **options: Any) -> tuple[Any, Any, Any]:
    """Train to the end with failures on the way; return everything, what was saved and what it cost."""
    left = dict(FAILURES)
    dense = dense_of(model)
    torch.manual_seed(7)
    with manage(model, path, policy, background=False, **options) as manager:
        fit(
            model,
            batches(),
            manager,
            loss_fn=loss_of,
            dense_optimizer=dense,
            batch_size_of=batch_size,
            failures=lambda step: left.pop(step, ()),
        )
    saves = [(s.sequence, s.kind, s.reason, s.step, s.rows) for s in manager.saves]
    costs = [
        (r.mode, r.step, r.rows_restored, r.rows_reset, r.lost_samples, r.lost_lookups, r.pls)
        for r in manager.recoveries
    ]
    return everything(model, dense), saves, costs


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_with_failures_is_that_of_the_cpu(tmp_path: Path, name: str) -> None:
    place = place_for_test()
    found = job(DeviceNet(place), tmp_path / "device", POLICIES[name])
    expected = job(DeviceNet(None), tmp_path / "cpu", POLICIES[name])
    if not ON_GPU:  # whose dense side has other sums
        assert same(found[0], expected[0])
    assert found[1:] == expected[1:]
    assert len(found[1]) > 3
    assert len(found[2]) == 2
    if POLICIES[name].recovery == "full":
        assert same(found[0], whole(DeviceNet(place)))
    else:
        assert all(lost > 0 and pls > 0 for *_, lost, pls in found[2])


@pytest.mark.parametrize("kind", [DataType.FP16, DataType.BF16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_full_recovery_is_bit_equal_for_every_optimizer(tmp_path: Path, name: str, kind: DataType) -> None:
    def net() -> DeviceNet:
        return DeviceNet(place_for_test(lanes=8), OPTIMIZERS[name], data_type=kind)

    found, _, _ = job(net(), tmp_path, Full())
    assert same(found, whole(net()))


@pytest.mark.parametrize("name", ["partial", "mfu", "ssu", "drift", "scar"])
def test_a_lost_shard_comes_back_and_no_other_row_moves(tmp_path: Path, name: str) -> None:
    model = DeviceNet(place_for_test())
    manager = manage(model, tmp_path, POLICIES[name])
    manager.start()
    train(model, batches(13), manager)
    manager.save("delta", wait=True)
    saved = rows_of(model)
    train(model, batches(2, seed=8), manager)
    manager.flush()
    newest = rows_of(model)
    counts = lookups_of(model, [in_shard(table, 2) for table in range(len(ROWS))])
    report = manager.recover([2])
    assert report.lost_lookups == counts > 0
    assert report.pls > 0
    after = rows_of(model)
    for table in range(len(ROWS)):
        inside = in_shard(table, 2)
        for part in (2 * table, 2 * table + 1):
            got, last = after[part], newest[part]
            assert np.array_equal(np.delete(got, np.r_[inside], 0), np.delete(last, np.r_[inside], 0))
            if name == "partial":
                assert np.array_equal(got[inside], saved[part][inside])
    assert lookups_of(model, [in_shard(table, 2) for table in range(len(ROWS))]) == 0
    manager.close()


def test_the_ledger_follows_the_counters_through_saves_that_overlap_training(tmp_path: Path) -> None:
    model = DeviceNet(place_for_test())
    manager = manage(model, tmp_path, POLICIES["mfu"])
    manager.start()
    ledger = manager._saves._ledger
    assert ledger is not None
    seen = 0
    for number, batch in enumerate(batches(20)):
        train(model, [batch], manager)
        seen += len(batch[0])
        if number % 4 == 3:
            manager.flush()
            of_shards = [
                lookups_of(model, [in_shard(table, shard) for table in range(len(ROWS))])
                for shard in range(SHARDS)
            ]
            assert ledger.unsaved.tolist() == of_shards
            assert ledger.total == seen
    assert sum(save.kind == "priority" for save in manager.saves) > 2
    manager.close()


@pytest.mark.parametrize("background", [False, True])
def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path, *, background: bool) -> None:
    place = place_for_test()
    model = DeviceNet(place)
    manager = manage(model, tmp_path, Delta(), background=background)
    manager.start()
    train(model, batches(12), manager)
    manager.close()
    saved, marks = rows_of(model), tracked(model)
    other = DeviceNet(place)
    resumed = manage(other, tmp_path, Delta(), background=background)
    report = resumed.resume(required=True)
    assert report is not None
    assert report.step == 12
    assert report.rows_restored == sum(ROWS)
    assert same(rows_of(other), saved)
    assert [int(marks[i].sum()) for i in range(0, 6, 2)] == [0, 0, 0]
    for one in (model, other):
        torch.manual_seed(7)
        train(one, batches(3, seed=9))
    assert same(rows_of(other), rows_of(model))
    assert same(tracked(other), tracked(model))
    assert other.tables.optimizer_scalars() == model.tables.optimizer_scalars()
    resumed.close()


def test_a_checkpoint_does_not_know_where_the_tables_were(tmp_path: Path) -> None:
    device = DeviceNet(place_for_test())
    with manage(device, tmp_path, Delta()) as manager:
        manager.start()
        train(device, batches(9), manager)
    out = tmp_path.parent / "exported.pt"
    export(CheckpointStore(tmp_path).latest("exact"), out, form="state_dict")
    exported, weights = torch.load(out, weights_only=True), device.tables.state_dict()
    for name in ("big", "mid", "tiny"):
        weight = weights[f"embedding_bags.{name}.weight"].cpu()
        assert torch.equal(exported[f"{name}.weight"], weight)
    assert torch.equal(exported["mlp.0.weight"], device.mlp[0].weight.cpu())
    host = DeviceNet(None)
    manager = manage(host, tmp_path, Delta())
    manager.resume(required=True)
    assert same(rows_of(host), rows_of(device))
    train(host, batches(4, seed=9), manager)
    manager.close()
    back = DeviceNet(place_for_test(), host_memory=True)
    manager = manage(back, tmp_path, Delta())
    manager.resume(required=True)
    assert same(rows_of(back), rows_of(host))
    manager.close()


@pytest.mark.parametrize("beside", [False, True])
def test_a_restart_counts_what_was_lost_as_on_the_cpu(tmp_path: Path, *, beside: bool) -> None:
    reports = []
    for place in (place_for_test(), None):
        path = tmp_path / ("cpu" if place is None else "device")
        model = DeviceNet(place, beside=beside)
        manager = manage(model, path, POLICIES["mfu"], background=False)
        manager.start()
        train(model, batches(12), manager)
        manager.save(wait=True)
        train(model, batches(1, seed=8), manager)
        manager._saves.close()  # as a process leaves it that dies
        other = DeviceNet(place, beside=beside)
        manager = manage(other, path, POLICIES["mfu"], background=False)
        report = manager.resume(required=True)
        assert report is not None
        reports.append((report.lost_lookups, report.pls, report.rows_restored))
        manager._saves.close()
    assert reports[0] == reports[1]
    assert beside or reports[0][0] > 0


def test_quantised_saves_come_back_within_their_bound(tmp_path: Path) -> None:
    model = DeviceNet(place_for_test())
    manager = manage(model, tmp_path, Mfu(fraction=0.25, row_share=0.9), quantise=8)
    manager.start()
    train(model, batches(12), manager)
    manager.save(wait=True)
    before = [w.view(np.float32) for w in rows_of(model)[::2]]
    report = manager.recover(list(range(SHARDS)))
    assert report.rows_quantised > 0
    after = [w.view(np.float32) for w in rows_of(model)[::2]]
    assert all(np.isfinite(w).all() for w in after)
    assert np.abs(after[2] - before[2]).max() < 0.02
    manager.close()


def test_one_collection_on_the_device_and_one_on_the_cpu(tmp_path: Path) -> None:
    results = []
    for name in ("full", "mfu"):
        mixed = job(DeviceNet(place_for_test(), beside=True), tmp_path / f"mixed-{name}", POLICIES[name])
        host = job(DeviceNet(None, beside=True), tmp_path / f"host-{name}", POLICIES[name])
        if not ON_GPU:
            assert same(mixed[0], host[0])
        assert mixed[1:] == host[1:]
        results.append(mixed)
    assert same(results[0][0], whole(DeviceNet(place_for_test(), beside=True)))
    assert all(lost > 0 for *_, lost, _ in results[1][2])


def test_torchs_own_optimizer_writes_rows_on_the_device(tmp_path: Path) -> None:
    model = DeviceNet(place_for_test())
    model.tables = type(model.tables)(
        model.tables.embedding_bag_configs(), optimizer=None, device=model.place, max_staging_bytes=1 << 17
    )
    optimizer = torch.optim.SGD([*model.tables.parameters(), *model.mlp.parameters()], lr=0.05)
    with manage(model, tmp_path, Full(), dense_optimizer=optimizer, background=False) as manager:
        manager.start()
        for batch in batches(8):
            optimizer.zero_grad()
            loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            manager.step(BATCH)
        manager.save("delta", wait=True)
        saved = rows_of(model)
        with torch.no_grad():
            for weight in model.tables.parameters():
                weight.add_(1.0)
        manager.recover([0])
        assert same(rows_of(model), saved)


def test_moving_the_tables_under_a_manager_is_refused(tmp_path: Path) -> None:
    model = DeviceNet(place_for_test())
    manager = manage(model, tmp_path, Full())
    manager.start()
    (module,) = engine_modules(model)
    module._engine = DeviceNet(None).tables.engine  # as after a move
    with pytest.raises(ValueError, match="another engine"):
        manager.save(wait=True)
    manager._saves.close()
