"""Which rows of a range were seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native._native import mark_rows
from cpr_native._tensor import describe

BEGIN, END = 5, 75


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(BEGIN, END - 1), max_size=40),
            st.tuples(st.integers(BEGIN, END - 1), st.integers(0, END)).map(
                lambda span: list(range(span[0], min(END, span[0] + span[1])))
            ),
        ),
        max_size=4,
    )
)
def test_marks_and_counts_as_a_set_does(calls: list[list[int]]) -> None:
    seen, expected = np.zeros((END - BEGIN + 7) // 8, np.uint8), set[int]()
    for rows in calls:
        new = mark_rows(describe(np.array(rows, np.int64)), BEGIN, END, describe(seen))
        assert new == len(set(rows) - expected)
        expected |= set(rows)
        bits = np.unpackbits(seen, bitorder="little")
        assert set((np.flatnonzero(bits) + BEGIN).tolist()) == expected


@pytest.mark.parametrize("row", [BEGIN - 1, END, -(2**63), 2**63 - 1])
def test_a_row_outside_marks_nothing(row: int) -> None:
    seen = np.zeros((END - BEGIN + 7) // 8, np.uint8)
    with pytest.raises(IndexError, match=rf"expected rows of \[{BEGIN}, {END}\), got"):
        mark_rows(describe(np.array([BEGIN, row])), BEGIN, END, describe(seen))
    assert not seen.any()
