"""A recovery that ends half way: nothing is saved or trained until the shards were recovered again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recovery.jobs import (
    BATCH,
    OPTIMIZERS,
    Net,
    adam,
    batches,
    everything,
    in_shard,
    manage,
    rows_of,
    same,
    train_step,
)

from cpr_native.errors import CorruptionError, CprError
from cpr_native.policy import Delta, Full, Mfu, Partial, Policy
from cpr_native.recovery import RecoveryManager
from cpr_native.store import RestorePlan

PLS = 0.0625


def trained(path: Path, policy: Policy) -> tuple[Net, RecoveryManager]:
    model = Net(OPTIMIZERS["adagrad"])
    manager = manage(model, path, policy, dense=adam(model), target_pls=PLS, background=False)
    manager.start()
    for batch in batches(12):
        train_step(model, batch)
        manager.step(BATCH)
    return model, manager


def newest_segment(path: Path, shard: int) -> Path:
    return max((path / "shards" / str(shard) / "segments").iterdir())


def damage_after_the_check(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let `path` lose a bit once the plan that reads it has been verified."""
    verify = RestorePlan.verify
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1  # of the first row's id

    def then_damaged(plan: RestorePlan) -> None:
        verify(plan)
        path.write_bytes(bytes(data))

    monkeypatch.setattr(RestorePlan, "verify", then_damaged)


@pytest.mark.parametrize("policy", [Partial(), Mfu(), Delta()], ids=["partial", "mfu", "delta"])
def test_v22_file_damaged_while_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    model, manager = trained(tmp_path, policy)
    manager.save("delta", wait=True)
    saves = len(manager.saves)
    segment = newest_segment(tmp_path, 2)
    with monkeypatch.context() as patch:
        damage_after_the_check(patch, segment)
        with pytest.raises(CorruptionError, match=f"{segment.name}.*half restored"):
            manager.recover([2])
    for call in (lambda: manager.step(BATCH), manager.save, manager.close):
        with pytest.raises(CprError, match=r"recover\(failed_shards=\[2\]\) again"):
            call()
    assert len(manager.saves) == saves
    assert manager.steps == 12
    report = manager.recover([1])
    assert report.shards == (1, 2)
    assert segment.name in " ".join(report.skipped)
    assert all(np.isfinite(array).all() for array in rows_of(model))
    train_step(model, batches(1, seed=8)[0])
    manager.step(BATCH)
    now = rows_of(model)
    manager.close()
    if policy.recovery == "partial":  # a damaged delta was left out: the chain needs a base
        assert manager.saves[-1].kind == "base"
    again = Net(OPTIMIZERS["adagrad"])
    manager = manage(again, tmp_path, Full(), dense=adam(again))
    manager.resume()
    assert same(rows_of(again), now)
    manager.close()


def test_interrupt_in_a_partial_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, manager = trained(tmp_path, Partial())
    expected = sum(
        int(model.tables.engine.counts(table)[in_shard(table, shard)].sum())
        for table in range(3)
        for shard in (0, 3)
    )

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RestorePlan, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.recover([0, 3])
    with pytest.raises(CprError, match="half restored"):
        manager.step(BATCH)
    report = manager.recover([0])
    assert report.shards == (0, 3)
    assert report.lost_lookups == expected
    assert manager.recoveries == [report]
    manager.step(BATCH)
    manager.close()


def test_interrupt_in_a_full_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, manager = trained(tmp_path, Full())
    manager.save(wait=True)
    at_save = everything(model)
    train_step(model, batches(1, seed=8)[0])
    manager.step(BATCH)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RestorePlan, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.recover([1])
    with pytest.raises(CprError, match="half restored"):
        manager.save()
    assert manager.recover([1]).step == 12
    assert same(everything(model), at_save)
    manager.close()


def test_interrupted_resume_can_be_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, manager = trained(tmp_path, Full())
    manager.close()
    again = Net(OPTIMIZERS["adagrad"])
    manager = manage(again, tmp_path, Full(), dense=adam(again))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RestorePlan, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.resume()
    with pytest.raises(ValueError, match="call resume"):
        manager.step(BATCH)
    manager.resume()
    assert same(rows_of(again), rows_of(model))
    manager.step(BATCH)
    manager.close()


def test_unreadable_checkpoint_needs_no_second_recovery(tmp_path: Path) -> None:
    model, manager = trained(tmp_path, Partial())
    before = rows_of(model)
    kept = {}
    for segment in (tmp_path / "shards" / "2" / "segments").iterdir():
        kept[segment] = segment.read_bytes()
        segment.write_bytes(kept[segment][:-1])
    with pytest.raises(CprError, match="no intact base"):
        manager.recover([2])
    assert same(rows_of(model), before)
    manager.step(BATCH)
    for segment, data in kept.items():
        segment.write_bytes(data)
    assert manager.recover([2]).shards == (2,)
    manager.close()
