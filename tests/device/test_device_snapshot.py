"""Snapshots of tables on a device take what snapshots on the CPU take, and leave the same trackers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_memory import LANES
from device_saves import KINDS, Pair, Reader, assert_taken, selection
from engine import drain

from cpr_native._native import CprError, Selection, SnapshotInProgress
from cpr_native._tensor import describe

each_lanes = pytest.mark.parametrize("lanes", LANES)
ROWS = (700, 90, 33)
SMALL = 40_000  # bytes of staging: a piece is some tiles of 32 to 48 rows


def trained(rows: tuple[int, ...] = ROWS, steps: int = 6, bags: int = 120, **options: Any) -> Pair:
    pair = Pair(rows, **{"spec": {"drift": True}, **options})
    rng = np.random.default_rng(0)
    for _ in range(steps):
        pair.random_step(rng, bags)
    return pair


def save(
    pair: Pair,
    kinds: list[str],
    rng: np.random.Generator,
    *,
    clears_dirty: bool,
    steps: int = 0,
    abort: bool = False,
    bags: int = 60,
) -> list[int]:
    """One snapshot of both with `steps` steps beside it; returns the rows that were taken."""
    selections = [selection(kind, n, rng) for kind, n in zip(kinds, pair.rows, strict=True)]
    cpu, device = pair.begin(selections, clears_dirty=clears_dirty)
    readers = [Reader(snapshot, len(pair.rows)) for snapshot in (cpu, device)]
    for _ in range(steps):
        pair.random_step(rng, bags)
    expected, found = (reader.result() for reader in readers)
    assert_taken(found, expected)
    assert device.status == "complete"
    assert device.step == cpu.step
    assert device.rows_taken == cpu.rows_taken
    for kind, a, b in zip(kinds, device.expected_rows, cpu.expected_rows, strict=True):
        assert a <= b if kind == "sampled" else a == b
    pair.assert_totals()
    for snapshot in (cpu, device):
        snapshot.abort() if abort else snapshot.commit()
        assert snapshot.status == ("aborted" if abort else "committed")
    pair.assert_totals()
    return [len(taken.rows) for taken in found]


@each_lanes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_every_kind_at_rest(lanes: int, kind: str, end: str) -> None:
    pair = trained(lanes=lanes)
    rng = np.random.default_rng(3)
    clears = kind in ("all", "dirty")
    taken = save(pair, [kind, kind, "none"], rng, clears_dirty=clears, abort=end == "abort")
    assert taken[2] == 0
    assert (sum(taken) > 0) == (kind != "none")


@each_lanes
@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_rows_are_of_one_step_while_training_goes_on(lanes: int, kind: str, end: str) -> None:
    pair = trained(lanes=lanes, device_seed=lanes, max_staging_bytes=SMALL)
    rng = np.random.default_rng(lanes)
    for _ in range(3):
        clears = kind in ("all", "dirty")
        save(pair, [kind] * 3, rng, clears_dirty=clears, steps=5, abort=end == "abort", bags=10)
        pair.random_step(rng, 100)


@pytest.mark.parametrize("seed", range(12))
def test_kinds_after_each_other(seed: int) -> None:
    """Priority before delta, two in a row, aborted ones between, whatever the order of groups and streams."""
    rng = np.random.default_rng(seed)
    optimizer = ("row_wise_adagrad", "adam", "sgd", "partial_row_wise_adam")[seed % 4]
    pair = trained(
        lanes=LANES[seed % len(LANES)],
        device_seed=seed,
        max_staging_bytes=SMALL,
        optimizer=optimizer,
        dim=5,
        steps=2,
    )
    for _ in range(12):
        for _ in range(rng.integers(0, 3)):
            pair.random_step(rng, int(rng.integers(1, 100)))
        if rng.random() < 0.3:
            pair.call("mark_dirty", 0, rng.integers(0, ROWS[0], 5))
        whole = rng.random() < 0.4
        names = ("all", "dirty") if whole else KINDS[2:]
        kinds = [str(names[i]) for i in rng.integers(len(names), size=3)]
        steps = int(rng.integers(0, 4))
        save(pair, kinds, rng, clears_dirty=whole, steps=steps, abort=rng.random() < 0.3, bags=12)


@each_lanes
def test_an_abort_that_nothing_was_read_of(lanes: int) -> None:
    pair = trained(lanes=lanes, max_staging_bytes=1 << 17)
    rng = np.random.default_rng(1)
    for steps in range(3):
        snapshots = pair.begin([Selection.all(), Selection.dirty(), Selection.sampled()], clears_dirty=True)
        for _ in range(steps):
            pair.random_step(rng, 9)
        for snapshot in snapshots:
            snapshot.abort()
        pair.assert_totals()


@pytest.mark.parametrize("count", [2**27 - 1, 2**27 - 2, 3])
def test_ties_and_the_largest_counts(count: int) -> None:
    pair = Pair((900,))
    words = np.full(900, count, np.uint32)
    words[17] = 2**27 - 1
    pair.call("set_trackers", 0, words)
    rng = np.random.default_rng(0)
    first = save(pair, ["most_used"], rng, clears_dirty=False)
    assert 70 < first[0] < 160
    save(pair, ["most_used"], rng, clears_dirty=False, abort=True)


def test_what_updates_meet_is_kept_until_someone_reads() -> None:
    """Without a reader the parts are emptied into the host's memory, up to its bound."""
    pair = trained(rows=(3000,), max_staging_bytes=1 << 18)
    cpu, device = pair.begin([Selection.all()], clears_dirty=True, walk=False)
    rng = np.random.default_rng(2)
    for _ in range(12):
        pair.random_step(rng, 60, skew=1.0)
    assert device.status == "walking"
    cpu.walk()
    device.walk()
    assert_taken(drain(device, 1), drain(cpu, 1))
    for snapshot in (cpu, device):
        assert snapshot.expected_rows == [3000]
        snapshot.commit()
    pair.assert_totals()


@each_lanes
def test_rows_taken_one_by_one_before_the_walk(lanes: int) -> None:
    pair = trained(lanes=lanes)
    thirds, even = np.arange(700) % 3 == 0, np.arange(33) % 2 == 0
    for selected in (
        [Selection.dirty(), Selection.none(), Selection.rows(even)],
        [Selection.rows(thirds), Selection.most_used(9), Selection.sampled()],
    ):
        cpu, device = pair.begin(selected, clears_dirty=False, walk=False)
        rng = np.random.default_rng(4)
        for _ in range(3):
            pair.random_step(rng, 20)
        device.walk()
        cpu.walk()
        assert_taken(drain(device, 3), drain(cpu, 3))
        cpu.commit()
        device.commit()
        pair.assert_totals()


def test_blocking_copies_everything_in_begin() -> None:
    pair = trained(max_staging_bytes=SMALL)
    cpu, device = pair.begin([Selection.all()] * 3, clears_dirty=True, blocking=True)
    assert device.status == "complete"
    assert device.rows_taken == list(ROWS)
    pair.random_step(np.random.default_rng(2), 100)
    assert_taken(drain(device, 3), drain(cpu, 3))
    device.commit()
    cpu.commit()
    pair.assert_totals()


@pytest.mark.parametrize("shard_rows", [(100, 100, 100), ((1, 5), (0, 3), (2, 1))])
def test_chunks_are_of_one_shard_and_gathered_by_it(shard_rows: tuple[Any, ...]) -> None:
    pair = trained(max_staging_bytes=SMALL, spec={"drift": True, "row_offset": 11})
    found: list[dict[tuple[int, int], list[int]]] = []
    for snapshot in pair.begin([Selection.all()] * 3, clears_dirty=True, shard_rows=shard_rows):
        rows: dict[tuple[int, int], list[int]] = {}
        for segment in snapshot.gather(1 << 14, [-1] * 8):
            for tensor in segment.rows:
                rows.setdefault((segment.shard, tensor), []).append(segment.rows[tensor])
            segment.close()
        found.append({key: [sum(counts)] for key, counts in rows.items()})
        snapshot.commit()
    assert found[0] == found[1]
    assert len(found[0]) > 3


def test_rows_written_from_outside_fail_the_snapshot() -> None:
    pair = trained(max_staging_bytes=SMALL)
    cpu, device = pair.begin([Selection.all()] * 3, clears_dirty=True)
    drain(cpu, 3)
    cpu.abort()
    pair.random_step(np.random.default_rng(2), 9)
    pair.call("mark_dirty", 1, np.array([3]))
    with pytest.raises(CprError, match="'t1' were written from outside"):
        drain(device, 3)
    assert device.status == "failed"
    with pytest.raises(CprError, match="commit"):
        device.commit()
    device.abort()
    pair.assert_totals()


def test_what_a_reader_may_not_do() -> None:
    pair = trained(max_staging_bytes=SMALL)
    device = pair.device.native.begin([Selection.all()] * 3, clears_dirty=True)
    with pytest.raises(SnapshotInProgress, match="begin: expected no snapshot in flight, got one of step 6"):
        pair.device.native.begin([Selection.all()] * 3, clears_dirty=True)
    with pytest.raises(ValueError, match="more to come"):
        device.commit()
    chunk = next(iter(device))
    rows = chunk.rows.copy()
    drain(device, 3)
    assert np.array_equal(chunk.rows, rows)  # memory of a chunk in hand is not used again
    device.commit()
    with pytest.raises(ValueError, match="committed before"):
        device.commit()
    device.abort()  # no effect
    assert device.status == "committed"
    with pytest.raises(ValueError, match="mask"):
        pair.device.native.begin([Selection.rows(np.zeros(5, bool))] * 3, clears_dirty=True)


def test_a_dropped_snapshot_is_given_back() -> None:
    pair = trained(max_staging_bytes=SMALL)
    device = pair.device.native.begin([Selection.all()] * 3, clears_dirty=True)
    next(iter(device))
    del device
    pair.assert_totals()
    pair.device.native.begin([Selection.dirty()] * 3, clears_dirty=True).abort()
    pair.device.native.close()
    pair.assert_totals()


def test_rounded_rows_and_long_ones() -> None:
    pair = Pair((50, 7), dim=300, max_staging_bytes=1 << 18, spec={"dtype": "bfloat16"}, optimizer="adam")
    rng = np.random.default_rng(0)
    pair.random_step(rng, 20)
    save(pair, ["dirty", "all"], rng, clears_dirty=True, steps=2, bags=5)
    weight = np.zeros((1, 300), np.uint16)
    state = np.zeros((1, 600), np.float32)
    pair.device.native.copy_rows(0, describe(np.array([3])), describe(weight), describe(state))
    assert np.array_equal(weight[0], pair.twin.native.weight(0)[3])
