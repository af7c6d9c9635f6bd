"""The way of a batch's ids to the shards that hold their rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from route_cases import Cluster, random_cluster, random_ids, ref

from cpr_native._tensor import describe


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
