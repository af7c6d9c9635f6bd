"""Rows and gradients that a shard refuses, with nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cluster.cluster_jobs import (
    spec_of,
)

from cpr_native.cluster.messages import (
    RowIds,
    Tag,
)
from cpr_native.cluster.server import ShardServer


def _nothing(spec: object) -> RowIds:
    return RowIds(np.zeros(3, np.int64), np.zeros(0, np.int32))


def _one_row(server: ShardServer, value: float = 1.0) -> tuple[RowIds, np.ndarray, np.ndarray]:
    rows = RowIds(np.array([1, 0, 0], np.int64), np.array([2], np.int32))
    return rows, np.full(8, value, np.float32), np.array([3], np.uint32)


@pytest.mark.parametrize(
    ("counts", "rows", "error"),
    [
        ([1, 0, 0], [21], IndexError),
        ([1, 0, 0], [-1], IndexError),
        ([0, 2, 0], [0, 1], IndexError),
        ([2, 0, 0], [3, 3], ValueError),
        ([2, 0, 0], [4, 3], ValueError),
        ([1, 0, 0], [1, 2], ValueError),
        ([3, -1, 0], [1, 2], ValueError),
        ([1, 0], [1], ValueError),
    ],
)
def test_bad_rows_are_refused(
    tmp_path: Path, counts: list[int], rows: list[int], error: type[Exception]
) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    ids = RowIds(np.array(counts, np.int64), np.array(rows, np.int32))
    tag = Tag(1, 1, 0, server.incarnation)
    with pytest.raises(error):
        server.lookup(tag, ids)
    with pytest.raises(error):
        server.update(tag, ids, np.zeros(8 * len(rows), np.float32), np.ones(len(rows), np.uint32))
    assert server.status().watermarks == (0,)
    server.close()


def test_bad_gradients_are_refused(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    rows, gradient, times = _one_row(server)
    tag = Tag(1, 1, 0, server.incarnation)
    with pytest.raises(ValueError, match=r"gradient: expected \[8\], got \[7\]"):
        server.update(tag, rows, gradient[:7], times)
    with pytest.raises(TypeError, match="gradient: expected float32, got float64"):
        server.update(tag, rows, gradient.astype(np.float64), times)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiplicity: expected at least 1"):
        server.update(tag, rows, gradient, np.zeros(1, np.uint32))
    assert server.update(tag, rows, gradient, times).applied == 1
    server.close()


def test_a_gradient_that_is_not_finite_counts_as_a_step(tmp_path: Path) -> None:
    server = ShardServer(spec_of(tmp_path), 0)
    rows, gradient, times = _one_row(server)
    before = server.rows("a")
    gradient[3] = np.nan
    assert server.update(Tag(1, 1, 0, server.incarnation), rows, gradient, times).applied == 1
    assert np.array_equal(server.rows("a")["weight"], before["weight"])
    assert server.status().skipped == 1
    server.close()
