from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_native.recovery.ledger import LookupLedger, routed, shards_of


@given(st.data())
def test_routed_counts_every_lookup_of_its_shard(data: st.DataObject) -> None:
    features = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
    block_rows, shards = [3, 5, 2], 4
    batch = data.draw(st.integers(0, 3))
    lengths = data.draw(
        st.lists(st.integers(0, 4), min_size=batch * len(features), max_size=batch * len(features))
    )
    frozen = data.draw(st.sets(st.integers(0, 2)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids, expected = [], [0] * shards
    for feature, table in enumerate(features):
        for _ in range(sum(lengths[feature * batch : (feature + 1) * batch])):
            row = data.draw(st.integers(0, block_rows[table] * shards - 1))
            ids.append(row)
            if table not in frozen:
                expected[row // block_rows[table]] += 1
    of = [shards_of(block, block * shards) for block in block_rows]
    counted = routed(np.array(ids, np.int64), offsets, features, of, shards, frozen=sorted(frozen))
    assert counted.tolist() == expected


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_routed_without_offsets_takes_all_ids(dtype: type) -> None:
    ids = np.array([0, 1, 5, 5], dtype)
    assert routed(ids, None, [0], [shards_of(2, 6)], 3).tolist() == [2, 0, 2]


def test_shards_of_balanced_rows_do_not_overflow() -> None:
    of = shards_of((1, 1000), 2**32 - 1)
    assert of(np.array([0, 2**31 - 1], np.int32)).tolist() == [1, 500]
    assert shards_of((2, 3), 7)(np.arange(7)).tolist() == [2, 2, 2, 3, 3, 4, 4]


def test_books() -> None:
    ledger = LookupLedger(3)
    ledger.add(np.array([5, 6, 7]))
    ledger.saved(np.array([5, 1, 0]))
    assert ledger.unsaved.tolist() == [0, 5, 7]
    assert ledger.lose([1, 2]) == 12
    assert ledger.unsaved.tolist() == [0, 0, 0]
    assert ledger.lose([1]) == 0
    assert ledger.total == 18
    ledger.rewind(4)
    assert ledger.total == 4


def test_counters_that_began_anew_have_nothing_unsaved() -> None:
    ledger = LookupLedger(2)
    ledger.add(np.array([5, 6]))
    ledger.restarted(1, 2)
    assert (ledger.unsaved.tolist(), ledger.total) == ([5, 0], 13)
