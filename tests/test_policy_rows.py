"""The masks of rows that policies name themselves, against slow references."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_native.policy import drawn_rows, most_changed_rows, next_rows


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
