"""A step that is captured once and replayed, with other ids each time, trains as the CPU engine does.

On a GPU it is a CUDA graph; on a device of the host the same calls are made again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_memory import Scratch, place_for_test, reachable
from device_saves import Pair, Reader, assert_taken
from device_timing import Replay
from engine import drain

from cpr_native._native import Selection
from cpr_native._tensor import describe

ROWS = (300, 40)
BAGS = 64
IDS = len(ROWS) * BAGS


class Replayed:
    """A pair of engines whose device side does every step by one replay."""

    def __init__(self, **options: Any) -> None:
        self.pair = Pair(ROWS, dim=8, **options)
        self.native = self.pair.device.native
        self.place = place_for_test()
        self.ids = reachable(np.zeros(IDS, np.int64))
        self.grad = reachable(np.zeros((BAGS, self.native.output_dim), np.float32))
        self.out = reachable(np.zeros_like(self.grad))
        self.batch = Scratch(self.native.batch_bytes(IDS, BAGS, weighted=False))
        self.workspace = Scratch(self.native.update_bytes(IDS))
        rng = np.random.default_rng(1)
        self.fill(rng)
        self.replay = Replay(self.place, self.calls)
        for _ in range(self.native.step(self.place.stream())):  # those before the first replay
            self.twin_step()

    def fill(self, rng: np.random.Generator) -> None:
        """Other ids, some of them of many bags, and another gradient; the work before has ended."""
        parts = [(n * rng.random(BAGS) ** 4).astype(np.int64) for n in ROWS]
        self.ids[:] = np.concatenate(parts)
        self.grad[:] = rng.standard_normal(self.grad.shape)

    def calls(self) -> None:
        given, out = describe(self.ids), describe(self.out)
        stream = self.place.stream()
        batch = self.native.lookup(
            given, None, None, out, self.batch.ref, self.batch, stream=stream, ids_per_bag=1
        )
        assert batch is not None
        self.native.update(batch, describe(self.grad), self.workspace.ref, stream=stream)

    def twin_step(self) -> None:
        assert self.pair.twin.step(self.ids.copy(), np.arange(IDS + 1), self.grad.copy())

    def step(self, rng: np.random.Generator, prepare: bool = False) -> None:
        """One step of both."""
        self.fill(rng)
        self.twin_step()
        if prepare:
            self.native.prepare_step(IDS, self.place.stream())
        self.replay_and_wait()

    def replay_and_wait(self) -> None:
        """Wait: the next ids are written into the same memory. Raises what lookups found."""
        self.replay()
        self.native.synchronize(self.place.stream())


@pytest.mark.parametrize("optimizer", ["sgd", "row_wise_adagrad", "adagrad", "adam", "partial_row_wise_adam"])
def test_replays_have_the_same_bits(optimizer: str) -> None:
    replayed, rng = Replayed(optimizer=optimizer), np.random.default_rng(2)
    for number in range(6):
        if number == 3:
            replayed.pair.twin.native.learning_rate = 0.01
            replayed.native.set_optimizer(learning_rate=0.01, stream=replayed.place.stream())
        replayed.step(rng)
    replayed.pair.assert_totals()
    assert replayed.native.step(replayed.place.stream()) == replayed.pair.twin.native.step


@pytest.mark.parametrize("kind", ["all", "dirty", "sampled"])
def test_rows_of_a_snapshot_beside_replays_are_the_same(kind: str) -> None:
    """Replays see what `begin` and `prepare_step` change, which is in memory of the device."""
    replayed = Replayed(max_staging_bytes=1 << 17, spec={"drift": True})
    rng, pair = np.random.default_rng(3), replayed.pair
    replayed.step(rng)
    for _ in range(3):
        cpu, device = pair.begin([getattr(Selection, kind)()] * 2, clears_dirty=kind != "sampled")
        readers = [Reader(snapshot, len(ROWS)) for snapshot in (cpu, device)]
        for _ in range(4):
            replayed.step(rng, prepare=True)
        expected, found = (reader.result() for reader in readers)
        assert_taken(found, expected)
        assert device.step == cpu.step
        for snapshot in (cpu, device):
            snapshot.commit()
        pair.assert_totals()


def test_a_snapshot_that_only_replays_meet_is_complete() -> None:
    replayed = Replayed(max_staging_bytes=1 << 18)
    rng, pair = np.random.default_rng(4), replayed.pair
    cpu, device = pair.begin([Selection.all()] * 2, clears_dirty=True, walk=False)
    for _ in range(5):
        replayed.step(rng, prepare=True)
    cpu.walk()
    device.walk()
    assert_taken(drain(device, 2), drain(cpu, 2))
    for snapshot in (cpu, device):
        snapshot.commit()
    pair.assert_totals()


def test_a_replay_with_a_bad_id_writes_nothing_and_is_raised() -> None:
    replayed, rng = Replayed(), np.random.default_rng(5)
    replayed.step(rng)
    replayed.ids[BAGS + 3] = 40
    with pytest.raises(IndexError, match="expected 0 <= id < 40 for table 't1', got id 40 at position 67"):
        replayed.replay_and_wait()
    replayed.pair.assert_totals()
    replayed.step(rng)
    replayed.pair.assert_totals()
