"""Rows that shards sent, pooled, and the gradients that they get."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ReferenceCollection, per_sample_weight_gradients
from route_cases import Cluster, random_cluster, random_ids

from cpr_native._tensor import describe


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


def test_rows_of_half_precision_are_pooled_as_floats() -> None:
    rng = np.random.default_rng(0)
    cluster = Cluster(rows=[50], dims=[8], features=[0], ranges=[[(0, 20), (20, 50)]], dtype="float16")
    ids, offsets = random_ids(rng, cluster, 9)
    routed = cluster.route(ids, offsets)
    cluster.fill(routed)
    assert cluster.pool(routed).tobytes() == cluster.look_up(ids, offsets).tobytes()


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
