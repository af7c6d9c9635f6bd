"""Every policy through a manager and its files: each save, partial recovery and a restart, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recovery.jobs import BATCH, OPTIMIZERS, ROWS, Net, batches, manage, train_step
from recovery.policy_jobs import LARGE, NAMES, PLS, POLICIES, PRIORITY, Job

from cpr_native.config import Trackers
from cpr_native.policy import Drift, Partial, Scar


@pytest.mark.parametrize("name", POLICIES)
def test_saves_hold_the_rows_of_the_policy_through_failures_and_a_restart(tmp_path: Path, name: str) -> None:
    job = Job(name, tmp_path)
    saves = sum(job.step(batch) for batch in batches(9))
    assert saves == 4
    lost = job.lose([1])
    assert lost.lost_lookups > 0
    assert lost.pls > 0
    saves += sum(job.step(batch) for batch in batches(8, seed=6))
    assert saves == 8
    job.lose([0, 3])
    saves += sum(job.step(batch) for batch in batches(4, seed=7))
    for batch in batches(1, seed=8):
        train_step(job.model, batch)  # lost in the crash
    job.restart()
    assert job.manager.steps == 20
    saves += sum(job.step(batch) for batch in batches(6, seed=9))
    job.lose([2])
    assert saves == job.due == 13
    assert job.manager.pls > 0
    job.manager._saves.close()
    assert job.model.tables.engine.memory()["saved"] == 0


@pytest.mark.parametrize("name", PRIORITY)
def test_equal_bytes(tmp_path: Path, name: str) -> None:
    """A save of any priority policy has at most the same rows, and the bytes of its rows and a fixed part.

    SCAR, random and round robin take the quota exactly. MFU and drift end at a bucket of which a hash takes
    the share that is left, so near the quota. SSU's list may have free slots.
    """
    job = Job(name, tmp_path)
    fixed = []
    for step in range(20):
        for batch in batches(6, seed=step):
            train_step(job.model, batch)
        if not job.step(batches(1, seed=step + 50)[0]):
            continue
        report, tables = job.manager.saves[-1], job.checked[-1]
        sizes = [len(tables[table].rows) for table in NAMES]
        quotas = [ROWS[table] // 5 if table in LARGE else ROWS[table] for table in range(3)]
        assert sizes[2] == quotas[2]
        for table in LARGE:
            if name in ("scar", "random", "round_robin"):
                assert sizes[table] == quotas[table]
            elif name == "ssu":
                assert 0.5 * quotas[table] < sizes[table] <= quotas[table]
            else:
                assert abs(sizes[table] - quotas[table]) <= 2 + 4 * np.sqrt(quotas[table])
        row_bytes = (8 + 4 * 8 + 4 + 4, 8 + 4 * 4 + 4 + 4, 8 + 4 * 4 + 4 + 4)
        fixed.append(report.bytes_written - sum(np.multiply(sizes, row_bytes)))
    assert len(fixed) == 10
    # Dense state, manifests and headers: a segment names only the tables it has rows of.
    assert max(fixed) - min(fixed) < 0.05 * np.mean(fixed)
    assert job.manager.coalesced == 0


def no_space(dense: object) -> bytes:
    raise OSError(28, "no space")


def test_scar_counts_rows_of_a_failed_save_as_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that could not be written are the first of the next save."""
    job = Job("scar", tmp_path)
    engine = job.model.tables.engine
    for batch in batches(3):
        job.step(batch)
    train_step(job.model, batches(4)[3])
    expected = job.expected()
    before = [engine.changes(table) for table in LARGE]
    with monkeypatch.context() as patch:
        patch.setattr("cpr_native.recovery.saver.encode", no_space)
        with pytest.raises(OSError, match="no space"):
            job.manager.step(BATCH)
    job.read_new()
    for table in LARGE:
        after = engine.changes(table)
        unknown = after == np.finfo(np.float32).max
        assert np.array_equal(np.flatnonzero(unknown), expected[table])
        assert np.array_equal(after[~unknown], before[table][~unknown])
    saves = len(job.manager.saves)
    job.manager.step(0)
    assert len(job.manager.saves) == saves + 1
    job._check(expected)


def test_the_copy_of_scar_takes_the_memory_of_the_prioritised_tables(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    engine = model.tables.engine
    with manage(model, tmp_path, Scar(row_share=0.9), target_pls=PLS) as manager:
        assert engine.memory()["saved"] == 0
        manager.start()
        assert engine.memory()["saved"] == (400 * 8 + 97 * 4) * 4
    assert engine.memory()["saved"] == 0


@pytest.mark.parametrize("trackers", [None, Trackers(drift=False)])
def test_drift_needs_its_tracker(tmp_path: Path, trackers: Trackers | None) -> None:
    with pytest.raises(ValueError, match=r"table 'big': Drift\(\) needs Trackers\(drift=True\), got "):
        manage(Net(OPTIMIZERS["adagrad"], trackers), tmp_path, Drift())


def test_small_tables_apart_lose_fewer_lookups(tmp_path: Path) -> None:
    reports = []
    for number, policy in enumerate((Partial(), Partial(small_tables_fraction=0.2, row_share=0.95))):
        model = Net(OPTIMIZERS["adagrad"])
        manager = manage(model, tmp_path / str(number), policy, target_pls=PLS, background=False)
        manager.start()
        for batch in batches(8):
            train_step(model, batch)
            manager.step(BATCH)
        counts = [model.tables.engine.counts(table)[: -(-ROWS[table] // 4)].sum() for table in range(3)]
        reports.append((manager.recover([0]), counts))
        manager._saves.close()
    (vanilla, all_counts), (small, counts) = reports
    assert vanilla.lost_lookups == sum(all_counts)
    assert small.lost_lookups == sum(counts)
    assert counts[2] == 0
    assert small.lost_lookups < vanilla.lost_lookups
    assert small.pls / vanilla.pls == pytest.approx(small.lost_lookups / vanilla.lost_lookups)
