"""A model of several embedding modules under one manager: one step, one commit, one recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recovery import towers
from recovery.jobs import BATCH, SHARDS, Arrays, same
from recovery.towers import NAMES, ROWS, OneCollection, Towers, batch_size, batches, dense_of, loss_of, manage

import cpr_native.shard
import cpr_native.store.restore
from cpr_native import convert
from cpr_native.modules import EmbeddingBag
from cpr_native.optim import SGD, RowWiseAdagrad
from cpr_native.policy import Delta, Full, Mfu, Partial, Policy, Random, RoundRobin, Scar, Ssu
from cpr_native.recovery import RecoveryReport
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.store import CheckpointStore, load_stored
from cpr_native.train import fit

POLICIES: dict[str, Policy] = {
    "full": Full(),
    "delta": Delta(),
    "partial": Partial(),
    "mfu": Mfu(fraction=0.25, row_share=0.9),
    "ssu": Ssu(fraction=0.125, row_share=0.9),
    "delta_partial": Delta(recovery="partial", interval_fraction=0.25),
    "partial_small": Partial(small_tables_fraction=0.25, row_share=0.9),
    "scar": Scar(fraction=0.25, row_share=0.9),
    "random": Random(fraction=0.25, row_share=0.9),
    "round_robin": RoundRobin(fraction=0.25, row_share=0.9),
}
FAILURES = {7: [1], 23: [0, 3]}


def job(model: Any, path: Path, policy: Policy, failures: dict[int, list[int]], **options: Any) -> Any:
    """Train to the end; return everything, what was saved and the reports."""
    left = dict(failures)
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
    return towers.everything(model, dense), saves, manager.recoveries


def uninterrupted() -> Arrays:
    model = towers.towers()
    dense = dense_of(model)
    torch.manual_seed(7)
    for batch in batches():
        dense.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        dense.step()
    return towers.everything(model, dense)


def cost(report: RecoveryReport) -> tuple[Any, ...]:
    return (
        report.mode,
        report.step,
        report.rows_restored,
        report.rows_reset,
        report.lost_samples,
        report.lost_lookups,
        report.pls,
    )


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("mfu", "ssu")])
def test_rows_saved_recoveries_and_pls_are_those_of_one_collection(tmp_path: Path, name: str) -> None:
    several = job(towers.towers(), tmp_path / "several", POLICIES[name], FAILURES)
    one = job(OneCollection(RowWiseAdagrad(lr=0.05)), tmp_path / "one", POLICIES[name], FAILURES)
    assert same(several[0], one[0])
    assert several[1] == one[1]
    assert len(several[1]) > 3
    assert [cost(r) for r in several[2]] == [cost(r) for r in one[2]]
    assert len(several[2]) == 2
    if POLICIES[name].recovery == "partial":
        assert several[2][0].lost_lookups > 0
        assert several[2][0].pls > 0
    else:
        assert same(several[0], uninterrupted())


@pytest.mark.parametrize("name", ["mfu", "ssu"])
def test_priority_saves_choose_over_all_modules(tmp_path: Path, name: str) -> None:
    """A quota counts rows of all modules; the same accesses are lost, whatever engine counted them."""
    _, saves, recoveries = job(towers.towers(), tmp_path / "several", POLICIES[name], FAILURES)
    one = job(OneCollection(RowWiseAdagrad(lr=0.05)), tmp_path / "one", POLICIES[name], FAILURES)
    kinds = [save[1] for save in saves]
    assert kinds == [save[1] for save in one[1]]
    assert kinds.count("priority") > 3
    for _, kind, _, _, rows in saves:
        assert rows == sum(ROWS) if kind == "base" else rows < sum(ROWS)
        assert kind != "priority" or ROWS[2] <= rows < 0.4 * sum(ROWS)
    assert all(report.lost_lookups > 0 and report.pls > 0 for report in recoveries)


@pytest.mark.parametrize("name", ["partial", "mfu", "ssu", "scar"])
def test_a_lost_shard_comes_back_and_no_other_row_moves(tmp_path: Path, name: str) -> None:
    model = towers.towers()
    manager = manage(model, tmp_path, POLICIES[name])
    manager.start()
    towers.train(model, batches(13), manager)
    manager.save("delta", wait=True)
    saved = towers.rows_of(model)
    towers.train(model, batches(2, seed=8), manager)
    manager.flush()
    newest = towers.rows_of(model)
    counts = sum(
        int(module.engine.counts(0)[2 * -(-rows // SHARDS) : 3 * -(-rows // SHARDS)].sum())
        for module, rows in zip(towers.engine_modules(model), ROWS, strict=True)
    )
    report = manager.recover([2])
    assert report.lost_lookups == counts > 0
    for number, rows in enumerate(ROWS):
        block = -(-rows // SHARDS)
        inside = slice(2 * block, min(rows, 3 * block))
        for part in (2 * number, 2 * number + 1):
            got, last = towers.rows_of(model)[part], newest[part]
            assert np.array_equal(np.delete(got, np.r_[inside], 0), np.delete(last, np.r_[inside], 0))
            if name == "partial":
                assert np.array_equal(got[inside], saved[part][inside])
            assert np.isfinite(got).all()
    manager.close()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from cpr_native.policy import Delta
from cpr_native.recovery import ResumableLoader
from recovery import towers
from recovery.jobs import BATCH

model = towers.towers()
dense = towers.dense_of(model)
loader = ResumableLoader(towers.batches())
manager = towers.manage(
    model, Path(sys.argv[1]), Delta(base_every=2), dense_optimizer=dense, loader=loader, keep=1
)
torch.manual_seed(7)
manager.start()
for batch in loader:
    dense.zero_grad()
    towers.loss_of(model, batch).backward()
    dense.step()
    manager.step(BATCH)
    if manager.steps < 23:
        manager.flush()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_new_process_goes_on_bit_equal(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    model = towers.towers()
    dense = dense_of(model)
    with manage(model, tmp_path, Delta(base_every=2), keep=1) as manager:
        fit(
            model,
            batches(),
            manager,
            loss_fn=loss_of,
            dense_optimizer=dense,
            batch_size_of=batch_size,
        )
    assert manager.recoveries[0].step == 20
    assert same(towers.everything(model, dense), uninterrupted())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_tables_of_torchs_optimizer_end_bit_equal_after_failures(tmp_path: Path) -> None:
    def run(path: Path | None) -> Arrays:
        model = convert(Towers())
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
        torch.manual_seed(7)
        if path is None:
            for batch in batches():
                optimizer.zero_grad()
                loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        else:
            left = dict(FAILURES)
            with manage(model, path, Delta(), dense_optimizer=optimizer) as manager:
                fit(
                    model,
                    batches(),
                    manager,
                    loss_fn=loss_of,
                    batch_size_of=batch_size,
                    failures=lambda step: left.pop(step, ()),
                )
        return towers.everything(model, optimizer)

    assert same(run(tmp_path), run(None))


def test_tables_are_named_by_their_place_and_scalars_kept_by_module(tmp_path: Path) -> None:
    model = towers.towers()
    described = TrainedCollection(model)
    assert [table.name for table in described.schema.tables] == NAMES
    assert described.keys == {f"{name}.weight" for name in NAMES}
    with manage(model, tmp_path, Delta(), background=False) as manager:
        manager.start()
        towers.train(model, batches(3), manager)
        model.bags[1].learning_rate = 0.5
        model.side["seen"].grad_scale = 0.25
        manager.save(wait=True)
    assert sorted(CheckpointStore(tmp_path).latest("exact").engine["modules"]) == NAMES
    again = towers.towers()
    with manage(again, tmp_path, Delta()) as manager:
        manager.resume(required=True)
        assert again.bags[0].learning_rate == 0.05
        assert again.bags[1].learning_rate == 0.5
        assert again.side["seen"].grad_scale == 0.25
        assert [module.engine.step for module in towers.engine_modules(again)] == [3] * 4
        assert manager.samples == 3 * BATCH


def test_one_module_keeps_the_names_and_scalars_of_its_own(tmp_path: Path) -> None:
    model = torch.nn.Sequential(EmbeddingBag(40, 4, optimizer=SGD(lr=0.5)))
    with manage(model, tmp_path, Delta()) as manager:
        manager.start()
    point = CheckpointStore(tmp_path).latest("exact")
    assert [table.name for table in TrainedCollection(model).schema.tables] == ["weight"]
    assert point.engine["learning_rate"] == 0.5


@pytest.mark.parametrize("files", [1, 3])
def test_a_restore_opens_no_more_files_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    model = towers.towers()
    manager = manage(model, tmp_path, Delta())
    manager.start()
    for seed in range(3):
        towers.train(model, batches(2, seed=seed), manager)
        manager.save("delta", wait=True)
    saved = towers.rows_of(model)
    opened: list[int] = []

    def counted(wanted: Any, threads: int) -> None:
        opened.append(len({each[0].segment.path for each in wanted}))
        load_stored(wanted, threads)

    monkeypatch.setattr(cpr_native.store.restore, "_MOST_FILES", files)
    monkeypatch.setattr(cpr_native.shard, "load_stored", counted)
    towers.train(model, batches(2, seed=9))
    manager.recover([1])
    assert same(towers.rows_of(model), saved)
    assert max(opened) == files
    manager.close()
