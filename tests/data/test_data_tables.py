from __future__ import annotations

import pytest

from cpr_native.data import KAGGLE_TABLE_SIZES, hashed_table_sizes, kaggle_table_sizes


def test_full_size_is_criteo_kaggle() -> None:
    assert kaggle_table_sizes() == KAGGLE_TABLE_SIZES
    assert len(KAGGLE_TABLE_SIZES) == 26
    assert sum(KAGGLE_TABLE_SIZES) == 33_762_577


def test_scaling_keeps_small_tables_and_the_cap() -> None:
    sizes = kaggle_table_sizes(0.01, min_rows=500, max_rows=50_000)
    assert sizes[2] == 50_000  # 101,312 rows without the cap
    assert sizes[9] == 931
    assert sizes[1] == 500
    assert [size for full, size in zip(KAGGLE_TABLE_SIZES, sizes, strict=True) if full <= 500] == [
        full for full in KAGGLE_TABLE_SIZES if full <= 500
    ]


def test_hashed_sizes_leave_small_tables_room() -> None:
    sizes = hashed_table_sizes(max_rows=100_000)
    assert min(sizes) == 1000
    assert max(sizes) == 100_000
    assert sizes[0] == 1460


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 0.0}, "scale"),
        ({"scale": 1.5}, "scale"),
        ({"min_rows": 1}, "min_rows"),
        ({"min_rows": 100, "max_rows": 99}, "max_rows"),
    ],
)
def test_wrong_sizes_are_refused(arguments: dict[str, float], message: str) -> None:
    for function in (kaggle_table_sizes, hashed_table_sizes):
        with pytest.raises(ValueError, match=message):
            function(**arguments)
