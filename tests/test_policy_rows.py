"""The masks of rows that policies name themselves, against slow references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cpr_native.policy import drawn_rows, fitting_blocks, most_changed_rows, next_blocks, next_rows


@pytest.mark.parametrize("quota", [1, 5, 40, 299, 300])
@pytest.mark.parametrize("levels", [2, 30, 100_000])
def test_most_changed_rows(quota: int, levels: int) -> None:
    rng = np.random.default_rng(levels)
    changes = (rng.integers(0, levels, 300) / np.float32(7)).astype(np.float32)
    order = sorted(range(300), key=lambda row: (-changes[row], row))
    expected = sorted(row for row in order[:quota] if changes[row] > 0)
    assert np.flatnonzero(most_changed_rows(changes, quota)).tolist() == expected


def test_drawn_rows_are_those_of_the_raw_numbers() -> None:
    raw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((7, 3, 2)))).bit_generator.random_raw(50)
    expected = sorted(sorted(range(50), key=lambda row: -int(raw[row]))[:6])
    assert np.flatnonzero(drawn_rows(50, 6, seed=7, number=3, table=2)).tolist() == expected


def test_drawn_rows_stay_the_same_over_versions() -> None:
    assert np.flatnonzero(drawn_rows(1000, 5, seed=0, number=0, table=0)).tolist() == [26, 77, 308, 530, 799]


def test_every_row_is_drawn_as_often() -> None:
    counts = np.zeros(40)
    for number in range(2000):
        mask = drawn_rows(40, 10, seed=1, number=number, table=0)
        assert mask.sum() == 10
        counts += mask
    assert abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_all_rows_when_the_quota_is_that_large() -> None:
    assert drawn_rows(5, 5, seed=0, number=0, table=0).all()
    assert next_rows(5, 5, number=3).all()


@pytest.mark.parametrize(("rows", "quota"), [(10, 3), (10, 10), (7, 1), (1, 1), (10, 7)])
def test_next_rows_go_round(rows: int, quota: int) -> None:
    for number in range(25):
        expected = {(number * quota + i) % rows for i in range(quota)}
        assert set(np.flatnonzero(next_rows(rows, quota, number=number)).tolist()) == expected


def numbers(masks: list[np.ndarray[Any, Any]], dims: Sequence[int]) -> int:
    return sum(int(mask.sum()) * dim for mask, dim in zip(masks, dims, strict=True))


def test_blocks_are_taken_by_their_keys_as_far_as_they_fit() -> None:
    keys = [np.array([3.0, 0.0]), np.array([5.0]), np.array([2.0, 2.0])]
    dims = (10, 40, 20)  # 100 numbers
    expected = {
        0.4: [[False, False], [True], [False, False]],
        0.5: [[True, False], [True], [False, False]],
        0.7: [[True, False], [True], [True, False]],
        1.0: [[True, False], [True], [True, True]],
    }
    for fraction, rows in expected.items():
        for number in range(20):
            assert [m.tolist() for m in fitting_blocks(keys, dims, fraction, number=number)] == rows


def test_a_block_that_fits_in_part_is_taken_as_often_and_ends_the_save() -> None:
    keys, dims = [np.array([9.0]), np.array([1.0])], (80, 20)
    taken = [np.concatenate(fitting_blocks(keys, dims, 0.2, number=n)).tolist() for n in range(400)]
    assert taken.count([True, False]) == pytest.approx(100, abs=25)
    assert taken.count([False, False]) == 400 - taken.count([True, False])
    keys[0][0] = 0.0
    assert np.concatenate(fitting_blocks(keys, dims, 0.2, number=1)).tolist() == [False, True]


@pytest.mark.parametrize("fraction", [0.5, 0.125, 0.3])
@pytest.mark.parametrize("dims", [(4, 4, 4), (100, 1, 7, 30), (5,)])
def test_saves_by_key_are_of_the_fraction_on_average_and_forget_no_block(
    fraction: float, dims: Sequence[int]
) -> None:
    """Of blocks that move at their own speeds until they are saved."""
    speed = np.random.default_rng(0).random(len(dims)) + 0.5
    moved, held, last = speed.copy(), 0, np.zeros(len(dims))
    saves = 2000
    for number in range(saves):
        masks = fitting_blocks([np.array([each]) for each in moved], dims, fraction, number=number)
        held += numbers(masks, dims)
        taken = np.concatenate(masks)
        moved = np.where(taken, speed, moved + speed)
        last[taken] = number
    assert held / saves == pytest.approx(fraction * sum(dims), rel=0.1)
    assert (saves - last).max() < 100


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.125, 0.3])
def test_next_blocks_go_round_with_the_fraction_on_average(fraction: float) -> None:
    rows, dims = (1, 3, 1, 2), (7, 2, 30, 1)
    counts = np.zeros(sum(rows))
    saves = 400
    sizes = np.repeat(dims, rows)
    for number in range(saves):
        counts += np.concatenate(next_blocks(rows, dims, fraction, number=number))
    assert counts @ sizes / saves == pytest.approx(fraction * sizes.sum(), rel=0.02)
    assert counts.min() >= fraction * saves * 0.95
