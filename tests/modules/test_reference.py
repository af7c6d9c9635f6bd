"""The references themselves, against sums worked out by hand or in float64."""

from __future__ import annotations

import numpy as np
import pytest
import reference


def test_ordered_sum_is_plain_order_up_to_32() -> None:
    values = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    total = np.zeros(3, dtype=np.float32)
    for value in values:
        total += value
    np.testing.assert_array_equal(reference.ordered_sum(values), total)


def test_ordered_sum_is_a_32_ary_tree() -> None:
    # 33 values: 2^24 absorbs a lone 1 added to it in plain order too, but chunk sums are formed first.
    values = np.ones((64, 1), dtype=np.float32)
    values[0] = 2**24
    assert reference.ordered_sum(values)[0] == np.float32(2**24) + np.float32(32)
    assert np.cumsum(values)[-1] == np.float32(2**24)


@pytest.mark.parametrize("count", [0, 1, 33, 1024, 1025, 3000])
def test_ordered_sum_is_close_to_float64(count: int) -> None:
    values = np.random.default_rng(count).standard_normal((count, 2)).astype(np.float32)
    np.testing.assert_allclose(
        reference.ordered_sum(values), values.astype(np.float64).sum(axis=0), rtol=1e-4, atol=1e-4
    )


def test_sum_of_squares() -> None:
    row = np.arange(70, dtype=np.float32)
    assert reference.sum_of_squares(row) == np.sum(np.arange(70.0) ** 2)


def test_counts_saturate() -> None:
    counts = np.array([reference.MAX_COUNT - 1, 0, 5], dtype=np.uint32)
    reference.add_counts(counts, np.array([0, 0, 0, 2]))
    assert counts.tolist() == [reference.MAX_COUNT, 0, 6]
