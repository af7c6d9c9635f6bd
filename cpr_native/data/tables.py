"""Sizes of Criteo Kaggle's 26 tables."""

from __future__ import annotations

DENSE_FEATURES = 13
CATEGORICAL_FEATURES = 26

# Distinct values of C1..C26 in the whole train.txt, the missing value included where there is one; sum
# 33,762,577.
KAGGLE_TABLE_SIZES: tuple[int, ...] = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


def kaggle_table_sizes(
    scale: float = 1.0, *, min_rows: int = 1000, max_rows: int | None = None
) -> tuple[int, ...]:
    """Return the 26 table sizes of Criteo Kaggle, scaled down.

    Args:
        scale: share of the rows to keep, in (0, 1].
        min_rows: a table is never scaled below this many rows; a smaller one keeps its size. At least 2.
        max_rows: cap of every table after scaling, at least `min_rows`; None for no cap.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0.0 < scale <= 1.0:
        raise ValueError(f"scale must be in (0, 1], got {scale}")
    if min_rows < 2:
        raise ValueError(f"min_rows must be at least 2, got {min_rows}")
    if max_rows is not None and max_rows < min_rows:
        raise ValueError(f"max_rows must be at least min_rows = {min_rows}, got {max_rows}")
    sizes = (max(min(size, min_rows), round(size * scale)) for size in KAGGLE_TABLE_SIZES)
    return tuple(size if max_rows is None else min(size, max_rows) for size in sizes)


def hashed_table_sizes(
    scale: float = 1.0, *, min_rows: int = 1000, max_rows: int | None = None
) -> tuple[int, ...]:
    """Return `kaggle_table_sizes(...)` with every table enlarged to at least `min_rows` rows.

    For real files, whose values are hashed to rows: a small table of just as many rows as it has values would
    lose a third of them to collisions (0.003 of AUC on a sample of 137k lines).

    Raises:
        ValueError: an argument is out of its range.
    """
    return tuple(
        max(size, min_rows) for size in kaggle_table_sizes(scale, min_rows=min_rows, max_rows=max_rows)
    )


def checked_table_sizes(table_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return `table_sizes` if they are 26 sizes of at least 2 rows; raises ValueError."""
    if len(table_sizes) != CATEGORICAL_FEATURES:
        raise ValueError(f"table_sizes must have {CATEGORICAL_FEATURES} entries, got {len(table_sizes)}")
    for table, size in enumerate(table_sizes):
        if size < 2:
            raise ValueError(f"table_sizes[{table}] must be at least 2, got {size}")
    return tuple(int(size) for size in table_sizes)
