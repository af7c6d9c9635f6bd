"""Collections without pooling: a row an id, features with different numbers of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native._native import Batch, Collection, TableSpec
from cpr_native._tensor import describe

ROWS, DIM = (3000, 40), 12
# Features 0 and 2 look up the first table, feature 1 the second.
FEATURES = [0, 1, 0]


def collection(
    optimizer: str = "row_wise_adagrad", dims: tuple[int, ...] = (DIM, DIM), **spec: Any
) -> Collection:
    tables = [
        TableSpec(
            name=f"t{t}",
            num_embeddings=rows,
            embedding_dim=dim,
            init_min=-0.5,
            init_max=0.5,
            **{"pooling": "none", **spec},
        )
        for t, (rows, dim) in enumerate(zip(ROWS, dims, strict=True))
    ]
    return Collection(tables, FEATURES, optimizer=optimizer, learning_rate=0.1, seed=3)


def look_up(
    engine: Collection, ids: NDArray[Any], begins: NDArray[Any], threads: int = 2, dtype: str = "float32"
) -> tuple[NDArray[Any], Batch]:
    out = np.full((len(ids), engine.output_dim), np.nan, dtype=dtype)
    batch = engine.lookup(describe(ids), describe(begins), None, describe(out), threads=threads, keep=True)
    assert batch is not None
    return out, batch


def random_ids(counts: tuple[int, int, int], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    parts = [
        (ROWS[table] * rng.random(n) ** 3).astype(np.int64) for table, n in zip(FEATURES, counts, strict=True)
    ]
    return np.concatenate(parts), np.concatenate([[0], np.cumsum(counts)])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_same_bits_as_pooled_bags_of_one_id(dtype: str, threads: int) -> None:
    """The same ids in bags of one id, the shorter features filled up with empty bags."""
    ours, bags = collection(dtype=dtype), collection(dtype=dtype, pooling="sum")
    for step, counts in enumerate([(9000, 700, 4321), (0, 5, 1), (1, 0, 0)]):
        ids, begins = random_ids(counts, step)
        longest = max(counts)
        lengths = np.concatenate([np.arange(longest) < n for n in counts])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        out, batch = look_up(ours, ids, begins, threads)
        assert (ours.output_dim, batch.num_ids) == (DIM, len(ids))
        padded = np.zeros((longest, 3 * DIM), np.float32)
        other = bags.lookup(
            describe(ids), describe(offsets), None, describe(padded), threads=threads, keep=True
        )
        assert other is not None
        for feature, n in enumerate(counts):
            own = out[begins[feature] : begins[feature + 1]]
            np.testing.assert_array_equal(own, padded[:n, feature * DIM : (feature + 1) * DIM])
        grad = np.random.default_rng(step).standard_normal(out.shape).astype(np.float32)
        padded_grad = np.zeros_like(padded)
        for feature, n in enumerate(counts):
            columns = slice(feature * DIM, (feature + 1) * DIM)
            padded_grad[:n, columns] = grad[begins[feature] : begins[feature + 1]]
        assert ours.update(batch, describe(grad), threads=threads)
        assert bags.update(other, describe(padded_grad), threads=threads)
    for table in range(2):
        np.testing.assert_array_equal(ours.weight(table), bags.weight(table))
        np.testing.assert_array_equal(ours.state(table), bags.state(table))
        np.testing.assert_array_equal(ours.trackers(table), bags.trackers(table))
        np.testing.assert_array_equal(ours.sampled_rows(table), bags.sampled_rows(table))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_update_of_rows_that_were_not_read(threads: int) -> None:
    """Without memory for them: the same checks and the same step."""
    read, unread = collection(), collection()
    for step, counts in enumerate([(9000, 700, 4321), (0, 5, 1), (0, 0, 0)]):
        ids, begins = random_ids(counts, step)
        grad = np.random.default_rng(step).standard_normal((len(ids), DIM)).astype(np.float32)
        _, batch = look_up(read, ids, begins)
        kept = unread.lookup(describe(ids), describe(begins), None, None, threads=threads, keep=True)
        assert kept is not None
        assert (kept.num_ids, kept.batch_size) == (batch.num_ids, batch.batch_size)
        assert read.update(batch, describe(grad), threads=threads)
        assert unread.update(kept, describe(grad), threads=threads)
    for table in range(2):
        assert read.weight(table).tobytes() == unread.weight(table).tobytes()
        np.testing.assert_array_equal(read.state(table), unread.state(table))
        np.testing.assert_array_equal(read.trackers(table), unread.trackers(table))
        np.testing.assert_array_equal(read.sampled_rows(table), unread.sampled_rows(table))
    bad, begins = np.array([1, ROWS[0]]), np.array([0, 2, 2, 2])
    with pytest.raises(IndexError, match="got id 3000 at position 1"):
        unread.lookup(describe(bad), describe(begins), None, None, threads=threads, keep=True)
    pooled = collection(pooling="sum")
    with pytest.raises(ValueError, match="out: expected memory, unless there is no pooling; got none"):
        pooled.lookup(describe(bad), describe(begins), None, None, threads=threads, keep=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradient_of_each_table(dtype: str) -> None:
    engine = collection("none", dtype=dtype)
    ids, begins = random_ids((300, 20, 50), 1)
    out, batch = look_up(engine, ids, begins, dtype=dtype)
    grad = np.random.default_rng(2).standard_normal(out.shape).astype(dtype)
    for table in range(2):
        expected = np.zeros((ROWS[table], DIM))
        for feature, own in enumerate(FEATURES):
            if own == table:
                span = slice(begins[feature], begins[feature + 1])
                np.add.at(expected, ids[span], grad[span])
        rows, values = engine.gradient(batch, describe(grad), table=table, threads=2)
        np.testing.assert_array_equal(rows, expected.any(axis=1).nonzero()[0])
        np.testing.assert_allclose(values, expected[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("begins", "out_rows", "error", "message"),
    [
        ([0, 2, 3, 5], 4, ValueError, "number of ids 4"),
        ([1, 2, 3, 4], 4, ValueError, r"offsets\[0\]"),
        ([0, 3, 2, 4], 4, ValueError, r"offsets\[2\] = 2 after 3"),
        ([0, 5, 4, 4], 4, ValueError, r"offsets\[2\] = 4 after 5"),
        ([0, 2, 4], 4, ValueError, "offsets"),
        ([0, 2, 3, 4], 3, ValueError, "a row for each of 4 ids, got 3"),
        ([0, 1, 3, 4], 4, IndexError, "'t1', got id 1000 at position 1"),
    ],
)
def test_wrong_input(begins: list[int], out_rows: int, error: type[Exception], message: str) -> None:
    engine = collection()
    ids, out = np.array([5, 1000, 6, 7]), np.zeros((out_rows, DIM), np.float32)
    with pytest.raises(error, match=message):
        engine.lookup(describe(ids), describe(np.array(begins)), None, describe(out), threads=1, keep=True)
    assert not engine.counts(0).any()


def test_bags_are_refused() -> None:
    engine, ids, out = collection(), np.array([5, 6, 7]), np.zeros((3, DIM), np.float32)
    with pytest.raises(ValueError, match="where each feature's ids begin, got none"):
        engine.lookup(describe(ids), None, None, describe(out), threads=1, keep=True, ids_per_bag=1)
    with pytest.raises(ValueError, match="per_sample_weights: expected sum pooling"):
        engine.lookup(
            describe(ids),
            describe(np.array([0, 1, 2, 3])),
            describe(np.ones(3, np.float32)),
            describe(out),
            threads=1,
            keep=True,
        )


def test_refused_at_construction() -> None:
    with pytest.raises(ValueError, match=r"embedding_dim: expected one .* got 12 and 8"):
        collection(dims=(12, 8))
    tables = [
        TableSpec(
            name=f"t{pooling}", num_embeddings=2, embedding_dim=2, pooling=pooling, init_min=0, init_max=1
        )
        for pooling in ("none", "sum")
    ]
    for pair in (tables, tables[::-1]):
        with pytest.raises(ValueError, match="none for all tables"):
            Collection(pair, [0, 1], optimizer="none", learning_rate=0.0)
    assert tables[0].pooling == "none"
