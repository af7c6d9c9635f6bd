"""Recovery from commits that hold weights as codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from recovery.jobs import BATCH, OPTIMIZERS, Net, batches, dirty_bits, manage, rows_of, same, train_step

from cpr_native.policy import Delta, Partial
from cpr_native.store import CheckpointStore


def test_delta_chain_is_within_its_bound_and_goes_on(tmp_path: Path) -> None:
    model = Net(OPTIMIZERS["adagrad"])
    with manage(model, tmp_path, Delta(), background=False, quantise=8) as manager:
        manager.start()
        for batch in batches()[:12]:
            train_step(model, batch)
            manager.step(BATCH)
        manager.save("delta", wait=True)
        before = rows_of(model)
        report = manager.recover([0])
        assert report.rows_quantised > 0
        after = rows_of(model)
        for name, exact, found in zip(("w", "s") * 3, before, after, strict=True):
            if name == "s":
                assert found.tobytes() == exact.tobytes()
            else:
                assert np.abs(found - exact).max() <= 0.003
        assert not same(after, before)
        assert not any(bits.any() for bits in dirty_bits(model))
        # What is in memory is what the chain gives: the next delta goes on from there.
        train_step(model, batches(1, seed=8)[0])
        manager.step(BATCH)
        manager.save("delta", wait=True)
        memory = rows_of(model)
        manager.recover([1])
        again = rows_of(model)
        manager.recover([2])
        assert same(rows_of(model), again)
        changed = [(a != b).any(axis=1) for a, b in zip(after[::2], memory[::2], strict=True)]
        for rows, a, b in zip(changed, after[::2], again[::2], strict=True):
            assert (a[~rows] == b[~rows]).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_partial_recovery(tmp_path: Path, bits: int) -> None:
    model = Net(OPTIMIZERS["sgd"])
    sizes = {}
    for quantise in (None, bits):
        store = tmp_path / str(quantise)
        model = Net(OPTIMIZERS["sgd"])
        policy = Delta(recovery="partial", interval_fraction=0.5)
        with manage(model, store, policy, target_pls=0.9, background=False, quantise=quantise) as manager:
            manager.start()
            for batch in batches()[:9]:
                train_step(model, batch)
                manager.step(BATCH)
            manager.save("delta", wait=True)
            sizes[quantise] = sum(s.bytes_written for s in manager.saves if s.kind == "delta")
            report = manager.recover([1])
            assert (report.rows_quantised > 0) == (quantise is not None)
            assert CheckpointStore(store).latest().kind == "delta"
    assert sizes[bits] < sizes[None]


def test_wrong_bits_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="8 or 4 bits"):
        manage(Net(OPTIMIZERS["sgd"]), tmp_path / "x", Partial(), target_pls=0.9, quantise=5)
    assert not (tmp_path / "x").exists()
