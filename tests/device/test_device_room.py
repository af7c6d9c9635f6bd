"""Steps that meet more rows of a snapshot than its memory holds at once."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from device_memory import LANES
from device_saves import Pair, Reader, assert_taken
from engine import drain

from cpr_native._native import CprError, Selection, StagingFull

ROWS = (4000, 900)
SMALL = 100_000  # bytes of staging: updates have two parts, each for some hundred rows


def trained(lanes: int = 8, seed: int = 0) -> Pair:
    pair = Pair(
        ROWS,
        lanes=lanes,
        device_seed=seed,
        max_staging_bytes=SMALL,
        spec={"drift": True, "ssu_period": 1},
    )
    rng = np.random.default_rng(seed)
    for _ in range(4):
        pair.random_step(rng, 200)
    return pair


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("abort", [False, True])
def test_a_large_step_is_taken_in_parts(lanes: int, seed: int, abort: bool) -> None:
    """Rows recorded by any part of it are of the snapshot's step, evicted ones among them."""
    pair = trained(lanes, seed)
    rng = np.random.default_rng(9)
    kinds = [Selection.all(), Selection.sampled()] if seed % 2 else [Selection.dirty(), Selection.all()]
    cpu, device = pair.begin(kinds, clears_dirty=seed % 2 == 0)
    reader = Reader(device, len(ROWS))
    for bags in (1100, 3, 700):
        pair.random_step(rng, bags, skew=1.0)
    assert_taken(reader.result(), drain(cpu, len(ROWS)))
    for snapshot in (cpu, device):
        snapshot.abort() if abort else snapshot.commit()
    pair.assert_totals()


def test_parts_do_not_wait_for_the_walk() -> None:
    pair = trained()
    cpu, device = pair.begin([Selection.all()] * 2, clears_dirty=True, walk=False)
    reader = Reader(device, len(ROWS))
    pair.random_step(np.random.default_rng(2), 500, skew=1.0)
    assert device.status == "walking"
    assert 0 < sum(device.rows_taken) < sum(ROWS)
    cpu.walk()
    device.walk()
    assert_taken(reader.result(), drain(cpu, len(ROWS)))
    cpu.commit()
    device.commit()
    pair.assert_totals()


def test_steps_that_may_meet_every_row_wait_for_the_walk() -> None:
    pair = trained()
    cpu, device = pair.begin([Selection.none(), Selection.all()], clears_dirty=True, walk=False)
    reader = Reader(device, len(ROWS))
    pair.random_step(np.random.default_rng(2), 6000)
    assert device.stall_seconds > 0
    cpu.walk()
    assert_taken(reader.result(), drain(cpu, len(ROWS)))
    cpu.commit()
    device.commit()
    pair.assert_totals()


def test_an_abort_ends_the_wait_of_a_step() -> None:
    """Nobody reads: the step goes on until the host's memory is full, and when the snapshot is given up."""
    pair = trained()
    cpu, device = pair.begin([Selection.all()] * 2, clears_dirty=True, walk=False)
    timer = threading.Timer(1.0, device.abort)
    timer.start()
    pair.random_step(np.random.default_rng(2), 3000, skew=1.0)
    timer.join()
    assert device.status == "aborted"
    assert 0 < device.stall_seconds < 50
    cpu.abort()
    pair.assert_totals()


def test_steps_that_no_reader_makes_room_for_fail_and_may_be_tried_again() -> None:
    pair = trained()
    pair.device.native.max_stall_seconds = 0.05
    cpu, device = pair.begin([Selection.all()] * 2, clears_dirty=True, walk=False)
    rng = np.random.default_rng(2)
    with pytest.raises(StagingFull, match=r"no reader took a chunk for 0\.05 s"):
        small_steps(pair, rng, 100)
    assert device.stall_seconds > 0.05
    pair.device.native.synchronize()
    reader = Reader(device, len(ROWS))
    pair.device.native.max_stall_seconds = 60.0
    small_steps(pair, rng, 5)
    cpu.walk()
    device.walk()
    assert_taken(reader.result(), drain(cpu, len(ROWS)))
    cpu.commit()
    device.commit()
    pair.assert_totals()


def small_steps(pair: Pair, rng: np.random.Generator, steps: int) -> None:
    """Steps of `pair`, each first on the device: where one fails there, the other engine does none."""
    for _ in range(steps):
        ids = np.concatenate([rng.integers(0, rows, 20) for rows in ROWS])
        offsets = np.arange(len(ids) + 1)
        grad = rng.standard_normal((20, pair.twin.native.output_dim)).astype(np.float32)
        _, batch = pair.device.lookup(ids, offsets)
        pair.device.update(batch, grad)
        assert pair.twin.step(ids, offsets, grad)


def test_a_snapshot_without_room_within_a_step_fails_and_the_step_is_done() -> None:
    pair = Pair((40_000,), max_staging_bytes=SMALL)
    pair.device.native.max_stall_seconds = 0.05
    cpu, device = pair.begin([Selection.all()], clears_dirty=True, walk=False)
    pair.random_step(np.random.default_rng(2), 3000, skew=1.0)
    assert device.status == "failed"
    with pytest.raises(CprError, match=r"snapshot staging is full .* no reader took a chunk for 0\.05 s"):
        drain(device, 1)
    for snapshot in (cpu, device):
        snapshot.abort()
    pair.assert_totals()


def test_seconds_out_of_range_are_refused() -> None:
    native = trained().device.native
    with pytest.raises(ValueError, match="max_stall_seconds: expected 0 to 1e9, got"):
        native.max_stall_seconds = -1.0
    assert native.max_stall_seconds == 60.0
