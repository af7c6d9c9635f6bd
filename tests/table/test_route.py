"""The way of a batch's ids to the shards that hold their rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from reference import ReferenceCollection, per_sample_weight_gradients

from cpr_native._native import Collection, RoutedBatch, Router, TableSpec
from cpr_native._tensor import describe


def ref(values: NDArray[Any]) -> tuple[int, tuple[int, ...], str]:
    return describe(np.ascontiguousarray(values))


@dataclass(kw_only=True)
class Cluster:
    """Tables of `rows` x `dims`, cut among shards as `ranges` says, beside one collection of all rows."""

    rows: Sequence[int]
    dims: Sequence[int]
    features: Sequence[int]
    ranges: Sequence[Sequence[tuple[int, int]]]
    poolings: Sequence[str] = ()
    threads: int = 2
    dtype: str = "float32"
    specs: list[TableSpec] = field(init=False)

    def __post_init__(self) -> None:
        poolings = self.poolings or ["sum"] * len(self.rows)
        self.specs = [
            TableSpec(
                name=f"t{t}",
                num_embeddings=n,
                embedding_dim=dim,
                pooling=pooling,
                init_min=-1.0,
                init_max=1.0,
                dtype=self.dtype,
            )
            for t, (n, dim, pooling) in enumerate(zip(self.rows, self.dims, poolings, strict=True))
        ]
        self.router = Router(self.specs, self.features, self.ranges)
        self.local = Collection(self.specs, self.features, optimizer="sgd", learning_rate=1.0, seed=1)

    def route(self, ids: NDArray[Any], offsets: NDArray[Any]) -> RoutedBatch:
        return self.router.route(describe(ids), describe(offsets), threads=self.threads)

    def rows_of(self, shard: int, counts: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """The rows that `shard` would send."""
        ends = np.cumsum(counts)
        parts = [
            self.local.weight(t)[rows[end - count : end] + self.ranges[t][shard][0]]
            .astype(np.float32)
            .ravel()
            for t, (count, end) in enumerate(zip(counts, ends, strict=True))
        ]
        return np.concatenate(parts)

    def fill(self, batch: RoutedBatch) -> None:
        for shard in range(len(self.ranges[0])):
            values = self.rows_of(shard, batch.counts(shard), batch.rows(shard))
            batch.fill(shard, describe(values), threads=self.threads)

    def pool(self, batch: RoutedBatch, weights: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        out = np.full((batch.batch_size, self.router.output_dim), np.nan, np.float32)
        batch.pool(None if weights is None else describe(weights), describe(out), threads=self.threads)
        return out

    def look_up(
        self, ids: NDArray[Any], offsets: NDArray[Any], weights: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """What the local collection pools."""
        out = np.empty(((len(offsets) - 1) // len(self.features), self.local.output_dim), np.float32)
        given = None if weights is None else describe(weights)
        self.local.lookup(describe(ids), describe(offsets), given, describe(out), threads=1, keep=False)
        return out


def cut_rows(rng: np.random.Generator, rows: int, shards: int) -> list[tuple[int, int]]:
    """Random ranges, of any sizes and in any order, some empty."""
    cuts = np.sort(rng.integers(0, rows + 1, shards - 1))
    bounds = [0, *cuts.tolist(), rows]
    ranges = list(zip(bounds, bounds[1:], strict=False))
    return [ranges[i] for i in rng.permutation(shards)]


def random_cluster(rng: np.random.Generator, threads: int, poolings: Sequence[str] = ("sum",)) -> Cluster:
    tables = int(rng.integers(1, 5))
    rows = rng.integers(1, 300, tables).tolist()
    shards = int(rng.integers(1, 6))
    features = [*range(tables), *rng.integers(0, tables, int(rng.integers(0, 4))).tolist()]
    return Cluster(
        rows=rows,
        dims=rng.choice([1, 3, 8, 16, 20], tables).tolist(),
        features=rng.permutation(features).tolist(),
        ranges=[cut_rows(rng, n, shards) for n in rows],
        poolings=rng.choice(list(poolings), tables).tolist(),
        threads=threads,
    )


def random_ids(
    rng: np.random.Generator, cluster: Cluster, batch: int, *, longest: int = 3
) -> tuple[NDArray[Any], NDArray[Any]]:
    kind = np.int32 if rng.random() < 0.5 else np.int64
    lengths = rng.integers(0, longest + 1, batch * len(cluster.features))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [np.zeros(0, kind)]
    for f, table in enumerate(cluster.features):
        n = cluster.rows[table]
        count = int(offsets[(f + 1) * batch] - offsets[f * batch])
        ids.append((n * rng.random(count) ** 3).astype(kind))
    return np.concatenate(ids), offsets.astype(kind)


@given(seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 4), batch=st.integers(0, 40))
@settings(max_examples=80, deadline=None)
def test_each_shard_is_asked_for_what_unique_finds(seed: int, threads: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, threads)
    ids, offsets = random_ids(rng, cluster, batch)
    routed = cluster.route(ids, offsets)
    of_feature = [slice(offsets[f * batch], offsets[(f + 1) * batch]) for f in range(len(cluster.features))]
    index = routed.index()
    assert (routed.num_ids, routed.batch_size, index.dtype) == (len(ids), batch, np.int32)
    for t in range(len(cluster.rows)):
        mine = [of_feature[f] for f, table in enumerate(cluster.features) if table == t]
        looked_up = np.concatenate([ids[span] for span in mine])
        rows, inverse, counts = np.unique(looked_up, return_inverse=True, return_counts=True)
        np.testing.assert_array_equal(np.concatenate([index[span] for span in mine]), inverse.ravel())
        for shard, (begin, end) in enumerate(cluster.ranges[t]):
            before = routed.counts(shard)[:t].sum()
            span = slice(before, before + routed.counts(shard)[t])
            here = (rows >= begin) & (rows < end)
            np.testing.assert_array_equal(routed.rows(shard)[span], rows[here] - begin)
            np.testing.assert_array_equal(routed.multiplicity(shard)[span], counts[here])
    for shard in range(len(cluster.ranges[0])):
        assert routed.rows(shard).dtype == np.int32
        assert routed.multiplicity(shard).dtype == np.uint32
        assert routed.counts(shard).sum() == len(routed.rows(shard)) == len(routed.multiplicity(shard))


@given(seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_pooled_rows_and_their_gradients_are_those_of_the_reference(seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    poolings = ("sum",) if seed % 2 else ("sum", "mean")
    cluster = random_cluster(rng, threads, poolings)
    ids, offsets = random_ids(rng, cluster, 6, longest=90 if seed % 5 == 0 else 3)
    weights = rng.standard_normal(len(ids)).astype(np.float32) if poolings == ("sum",) else None
    routed = cluster.route(ids, offsets)
    cluster.fill(routed)
    out = cluster.pool(routed, weights)
    assert out.tobytes() == cluster.look_up(ids, offsets, weights).tobytes()
    slow = ReferenceCollection(
        [cluster.local.weight(t) for t in range(len(cluster.rows))],
        cluster.features,
        optimizer="sgd",
        lr=1.0,
        poolings=cluster.poolings,
    )
    grad = rng.standard_normal(out.shape).astype(np.float32)
    scale = float(np.float32(rng.choice([1.0, 0.7])))
    gradients = routed.gradient(describe(grad), threads=threads, grad_scale=scale)
    assert gradients is not None
    for t, dim in enumerate(cluster.dims):
        _, rows, sums = slow.gradients(t, ids, offsets, grad, weights, scale)
        for shard, (begin, end) in enumerate(cluster.ranges[t]):
            counts = routed.counts(shard) * np.array(cluster.dims)
            at = int(counts[:t].sum())
            mine = gradients[shard][at : at + int(counts[t])].reshape(-1, dim)
            assert mine.tobytes() == sums[(rows >= begin) & (rows < end)].tobytes()


def test_gradients_of_per_sample_weights() -> None:
    rng = np.random.default_rng(0)
    cluster = Cluster(rows=[50], dims=[20], features=[0], ranges=[[(20, 50), (0, 20)]])
    ids, offsets = random_ids(rng, cluster, 9)
    routed = cluster.route(ids, offsets)
    cluster.fill(routed)
    out = cluster.pool(routed, rng.random(len(ids)).astype(np.float32))
    grad = rng.standard_normal(out.shape).astype(np.float32)
    found = np.empty(len(ids), np.float32)
    routed.per_sample_weight_grad(describe(grad), describe(found), threads=2)
    expected = per_sample_weight_gradients(cluster.local.weight(0), ids, offsets, grad)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), threads=st.integers(1, 3), unit=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_largest_of_a_bag_gets_the_gradient_as_in_the_local_collection(
    seed: int, threads: int, unit: bool
) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, threads, ("max", "mean"))
    if unit:
        ids = np.concatenate([rng.integers(0, cluster.rows[t], 6) for t in cluster.features])
        offsets = np.arange(len(ids) + 1)
    else:
        ids, offsets = random_ids(rng, cluster, 6)
    routed = cluster.route(ids, offsets)
    cluster.fill(routed)
    out = np.empty((6, cluster.local.output_dim), np.float32)
    kept = cluster.local.lookup(describe(ids), describe(offsets), None, describe(out), threads=1, keep=True)
    assert kept is not None
    assert cluster.pool(routed).tobytes() == out.tobytes()
    grad = rng.standard_normal(out.shape).astype(np.float32)
    gradients = routed.gradient(describe(grad), threads=threads)
    assert gradients is not None
    before = [cluster.local.weight(t).copy() for t in range(len(cluster.rows))]
    # Plain SGD with a learning rate of 1, so that the step is the gradient.
    assert cluster.local.update(kept, describe(grad), threads=1)
    for shard, values in enumerate(gradients):
        at = first = 0
        for t, dim in enumerate(cluster.dims):
            count = int(routed.counts(shard)[t])
            rows = routed.rows(shard)[first : first + count] + cluster.ranges[t][shard][0]
            mine = values[at : at + count * dim].reshape(-1, dim)
            np.testing.assert_array_equal(before[t][rows] - mine, cluster.local.weight(t)[rows])
            at, first = at + count * dim, first + count


def test_a_large_batch_is_the_same_on_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    found = []
    for threads in (1, 2, 3, 8):
        cluster = Cluster(
            rows=[100_000, 500, 3],
            dims=[8, 64, 4],
            features=[0, 1, 2, 0],
            ranges=[[(0, 30_000), (30_000, 100_000)], [(500, 500), (0, 500)], [(1, 3), (0, 1)]],
            threads=threads,
        )
        rng = np.random.default_rng(1)
        ids, offsets = random_ids(rng, cluster, 5000, longest=4)
        routed = cluster.route(ids, offsets)
        cluster.fill(routed)
        out = cluster.pool(routed)
        gradients = routed.gradient(describe(out), threads=threads, grad_scale=0.3)
        assert gradients is not None
        parts = [out, routed.index(), *gradients]
        parts += [each(s) for s in range(2) for each in (routed.counts, routed.rows, routed.multiplicity)]
        found.append([part.tobytes() for part in parts])
    assert found[0] == found[1] == found[2] == found[3]


def test_rows_of_half_precision_are_pooled_as_floats() -> None:
    rng = np.random.default_rng(0)
    cluster = Cluster(rows=[50], dims=[8], features=[0], ranges=[[(0, 20), (20, 50)]], dtype="float16")
    ids, offsets = random_ids(rng, cluster, 9)
    routed = cluster.route(ids, offsets)
    cluster.fill(routed)
    assert cluster.pool(routed).tobytes() == cluster.look_up(ids, offsets).tobytes()


def test_bad_ids_and_offsets_are_named_as_by_the_local_collection() -> None:
    cluster = Cluster(rows=[10, 5], dims=[4, 4], features=[0, 1], ranges=[[(0, 10)], [(0, 5)]])
    cases: list[tuple[list[int], list[int]]] = [
        ([1, 10, 0, 0], [0, 1, 2, 3, 4]),
        ([1, 2, 0, 5], [0, 1, 2, 3, 4]),
        ([-1, 2, 0, 4], [0, 1, 2, 3, 4]),
        ([1, 2, 0, 4], [0, 1, 3, 2, 4]),
        ([1, 2, 0, 4], [0, 2, 1, 3, 4]),
        ([1, 2, 0, 4], [0, 1, 9, 3, 4]),
        ([1, 2, 0, 4], [1, 1, 2, 3, 4]),
        ([1, 2, 0, 4], [0, 1, 2, 3, 3]),
    ]
    for ids, offsets in cases:
        for kind in (np.int32, np.int64):
            given = np.array(ids, kind), np.array(offsets, kind)
            with pytest.raises((IndexError, ValueError)) as expected:
                cluster.look_up(*given)
            with pytest.raises(expected.type) as error:
                cluster.route(*given)
            assert str(error.value) == str(expected.value)
    with pytest.raises(ValueError, match="features \\* batch \\+ 1 elements with 2 features, got 4"):
        cluster.route(np.array([0, 1, 1]), np.arange(4))
    with pytest.raises(TypeError, match="ids: expected dtype int32 or int64, got float32"):
        cluster.route(np.zeros(4, np.float32), np.arange(5))


def test_only_the_same_batch_matches() -> None:
    cluster = Cluster(rows=[10, 5], dims=[4, 4], features=[0, 1], ranges=[[(0, 10)], [(0, 5)]])
    ids, offsets = np.array([1, 2, 0, 4]), np.arange(5)
    routed = cluster.route(ids, offsets)
    assert routed.matches(describe(ids), describe(offsets))
    assert routed.matches(ref(ids.astype(np.int32)), ref(offsets.astype(np.int32)))
    assert not routed.matches(ref(np.array([1, 3, 0, 4])), describe(offsets))
    assert not routed.matches(ref(np.array([1, 2, 0, -(2**33) + 4])), describe(offsets))
    assert not routed.matches(describe(ids), ref(np.array([0, 1, 1, 3, 4])))
    assert not routed.matches(ref(ids[:3]), describe(offsets))


def test_calls_that_do_not_fit_are_refused() -> None:
    cluster = Cluster(
        rows=[10, 5], dims=[4, 2], features=[0, 1], ranges=[[(0, 4), (4, 10)], [(0, 5), (5, 5)]],
        poolings=["mean", "sum"],
    )  # fmt: skip
    routed = cluster.route(np.array([5, 2]), np.arange(3))
    with pytest.raises(ValueError, match="expected the rows of all shards, got none of shard 0"):
        cluster.pool(routed)
    with pytest.raises(ValueError, match=r"values: expected shape \[2\], got \[5\]"):
        routed.fill(0, ref(np.zeros(5, np.float32)), threads=1)
    with pytest.raises(IndexError, match="shard: expected 0 <= shard < 2, got 2"):
        routed.fill(2, ref(np.zeros(5, np.float32)), threads=1)
    with pytest.raises(ValueError, match="gradient: expected a batch that was pooled"):
        routed.gradient(ref(np.zeros((1, 6), np.float32)), threads=1)
    cluster.fill(routed)
    with pytest.raises(ValueError, match="per_sample_weights: expected sum pooling"):
        cluster.pool(routed, np.ones(2, np.float32))
    out = cluster.pool(routed)
    out[0, 3] = np.inf
    assert routed.gradient(describe(out), threads=1) is None
    out[0, 3] = 1.0
    assert routed.gradient(describe(out), threads=1) is not None


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[(0, 4), (5, 10)]], "got row 4 in none"),
        ([[(0, 5), (4, 10)]], "got row 4 in several"),
        ([[(0, 5), (5, 9)]], "expected them to end at row 10, got 9"),
        ([[(0, 5), (5, 11)]], "expected them to end at row 10, got 11"),
        ([[(0, 10), (7, 6)]], r"expected begin <= end .* got \[7, 6\) for shard 1"),
        ([[]], "expected at least one shard"),
        ([], "expected one for each of 1 tables, got 0"),
    ],
)
def test_every_row_is_in_one_shard(ranges: list[list[tuple[int, int]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster(rows=[10], dims=[4], features=[0], ranges=ranges)


def test_gradients_outlive_the_batch_and_the_router() -> None:
    cluster = Cluster(rows=[1000], dims=[8], features=[0], ranges=[[(0, 400), (400, 1000)]])
    rng = np.random.default_rng(0)
    ids, offsets = random_ids(rng, cluster, 300)
    kept = []
    for _ in range(5):
        routed = cluster.route(ids, offsets)
        cluster.fill(routed)
        grad = rng.standard_normal((300, 8)).astype(np.float32)
        cluster.pool(routed)
        found = routed.gradient(describe(grad), threads=2)
        assert found is not None
        kept.append((found, [values.copy() for values in found]))
    del routed, cluster, found
    for found, copies in kept:
        assert [values.tobytes() for values in found] == [values.tobytes() for values in copies]
