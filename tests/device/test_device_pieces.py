"""The pieces in which a snapshot on a device goes over its rows, where updates have met many before."""

from __future__ import annotations

import numpy as np
import pytest
from device_memory import LANES
from device_saves import Pair, Reader, assert_taken, selection
from engine import drain

SMALL = 40_000  # bytes of staging: a piece is some tiles of 32 rows


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    ("kinds", "clears"),
    [(("all", "dirty", "all"), True), (("dirty", "none", "all"), True), (("none", "sampled", "rows"), False)],
)
@pytest.mark.parametrize("abort", [False, True])
def test_tiles_hold_less_than_was_counted(
    lanes: int, kinds: tuple[str, ...], clears: bool, abort: bool
) -> None:
    """Rows are counted by `begin`; most have been recorded by updates when their tiles' turn comes."""
    rows = (1500, 40, 1100)
    pair = Pair(
        rows, lanes=lanes, device_seed=lanes, max_staging_bytes=SMALL, spec={"drift": True, "ssu_period": 2}
    )
    rng = np.random.default_rng(lanes)
    for _ in range(3):
        pair.random_step(rng, 300, skew=1.5)
    for _ in range(2):
        selections = [selection(kind, n, rng) for kind, n in zip(kinds, rows, strict=True)]
        cpu, device = pair.begin(selections, clears_dirty=clears, walk=False)
        reader = Reader(device, len(rows))
        for _ in range(8):
            pair.random_step(rng, 30, skew=1.0)
        cpu.walk()
        device.walk()
        for _ in range(4):
            pair.random_step(rng, 20, skew=1.0)
        assert_taken(reader.result(), drain(cpu, len(rows)))
        assert device.rows_taken == cpu.rows_taken
        for snapshot in (cpu, device):
            snapshot.abort() if abort else snapshot.commit()
        pair.assert_totals()


@pytest.mark.parametrize("lanes", LANES)
def test_few_rows_of_many_tiles_and_tables(lanes: int) -> None:
    rows = (3000, 1, 33, 2000, 1)
    pair = Pair(rows, lanes=lanes, device_seed=7, max_staging_bytes=SMALL)
    rng = np.random.default_rng(1)
    for table, marked in ((0, [2999]), (2, [0, 32]), (3, range(1990, 2000)), (4, [0])):
        pair.call("mark_dirty", table, np.array(marked))
    pair.random_step(rng, 5)
    cpu, device = pair.begin([selection("dirty", n, rng) for n in rows], clears_dirty=True)
    reader = Reader(device, len(rows))
    for _ in range(3):
        pair.random_step(rng, 5)
    assert_taken(reader.result(), drain(cpu, len(rows)))
    cpu.commit()
    device.commit()
    pair.assert_totals()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [1, 4, 6, 8, 33])
def test_rows_of_any_width(lanes: int, dtype: str, dim: int) -> None:
    """Copied 16, 4 or 2 bytes at a time, and out of blocks in which no row is aligned."""
    rows = (150, 40)
    pair = Pair(rows, lanes=lanes, dim=dim, optimizer="adam", max_staging_bytes=SMALL, spec={"dtype": dtype})
    rng = np.random.default_rng(dim)
    pair.random_step(rng, 100)
    cpu, device = pair.begin([selection("all", n, rng) for n in rows], clears_dirty=True)
    reader = Reader(device, len(rows))
    for _ in range(2):
        pair.random_step(rng, 10)
    assert_taken(reader.result(), drain(cpu, len(rows)))
    cpu.commit()
    device.commit()
    pair.assert_totals()
