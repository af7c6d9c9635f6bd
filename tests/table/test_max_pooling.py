"""Max pooling, and gradients divided by how often a row comes, against slow loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from engine import Engine
from reference import add_counts, as_floats, mark_rows, occurrence_gradients, ordered_sum, row_gradients

from cpr_native._native import Collection, TableSpec

DTYPES = ["float32", "float16", "bfloat16", "float64"]


def largest(
    rows: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The pooled bags [bags, dim] and the position of each element's largest, -1 for an empty bag.

    A later item wins only by being larger, so the first of equal ones stays and a NaN only if it is first.
    """
    out = np.zeros((len(bounds) - 1, rows.shape[1]), rows.dtype)
    position = np.full(out.shape, -1)
    for bag, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for p in range(begin, end):
            row = rows[ids[p]]
            wins = row > out[bag] if p > begin else np.ones(len(row), np.bool_)
            out[bag] = np.where(wins, row, out[bag])
            position[bag] = np.where(wins, p, position[bag])
    return out, position


def wide(engine: Engine) -> np.ndarray[Any, Any]:
    weight = engine.native.weight(0)
    dtype = engine.spec.get("dtype", "float32")
    return weight.copy() if dtype == "float64" else as_floats(weight, dtype).copy()


def special_rows(engine: Engine) -> None:
    """Few distinct values, so that ties are common, with NaN, infinities and both zeros."""
    weight = engine.native.weight(0)
    rng = np.random.default_rng(1)
    values = rng.choice([-2.0, -0.0, 0.0, 1.0, 1.0, 2.0, np.inf, -np.inf, np.nan], weight.shape)
    if weight.dtype == np.uint16:
        weight[:] = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        weight[:] = values


@pytest.mark.parametrize("dim", [1, 8, 17])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_the_first_of_equal_ones(dtype: str, dim: int) -> None:
    """Empty, single, short and long bags; forward, and the gradient of the rows that won."""
    engine = Engine(rows=(40,), dim=dim, optimizer="none", pooling="max", spec={"dtype": dtype})
    special_rows(engine)
    rows = wide(engine)
    rng = np.random.default_rng(dim)
    lengths = np.array([0, 1, 2, 0, 3, 31, 32, 33, 700, 5, 5, 5, 0])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 40, bounds[-1])
    expected, position = largest(rows, ids, bounds)
    out, batch = engine.lookup(ids, bounds)
    assert np.array_equal(out, expected, equal_nan=True)
    assert np.array_equal(np.signbit(out[~np.isnan(out)]), np.signbit(expected[~np.isnan(out)]))

    grad = rng.standard_normal(out.shape).astype(out.dtype)
    found, values = engine.call("gradient", batch, grad, table=0, threads=1)
    occurrences = np.zeros((len(ids), dim), out.dtype)
    bag, column = np.nonzero(position >= 0)
    occurrences[position[bag, column], column] = grad[bag, column]
    assert np.array_equal(found, np.unique(ids))
    for row, value in zip(found, values, strict=True):
        items = occurrences[ids == row]
        total = ordered_sum(items) if dtype != "float64" else items.sum(axis=0)
        assert np.array_equal(value, total) if dtype != "float64" else np.allclose(value, total)
    counts = np.zeros(40, np.uint32)
    add_counts(counts, ids)
    assert np.array_equal(engine.native.counts(0), counts)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_several_features_of_one_table_pool_and_learn_apart(threads: int) -> None:
    """A max and a sum table with three features, of which two share the max table."""
    specs = [
        TableSpec(name=f"t{t}", num_embeddings=n, embedding_dim=5, init_min=-1, init_max=1, pooling=pooling)
        for t, (n, pooling) in enumerate([(30, "max"), (9, "sum")])
    ]
    native = Collection(specs, [0, 1, 0], optimizer="sgd", learning_rate=0.5, seed=1)
    engine = Engine(rows=(1,))  # for its `call`
    engine.native = native
    rng = np.random.default_rng(0)
    batch_size = 400
    lengths = rng.integers(0, 6, 3 * batch_size)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    starts = bounds[::batch_size]
    ids = np.concatenate([rng.integers(0, (30, 9, 30)[f], starts[f + 1] - starts[f]) for f in range(3)])
    weight = [native.weight(t).copy() for t in range(2)]
    out = np.empty((batch_size, 15), np.float32)
    grad = rng.standard_normal(out.shape).astype(np.float32)
    batch = engine.call("lookup", ids, bounds, None, out, threads=threads, keep=True)
    assert engine.call("update", batch, grad, threads=threads)

    occurrences = []
    for feature, column in ((0, 0), (2, 10)):
        bags = bounds[feature * batch_size : (feature + 1) * batch_size + 1]
        pooled, position = largest(weight[0], ids, bags)
        assert np.array_equal(out[:, column : column + 5], pooled)
        mine = np.zeros((bags[-1] - bags[0], 5), np.float32)
        bag, d = np.nonzero(position >= 0)
        mine[position[bag, d] - bags[0], d] = grad[bag, column + d]
        occurrences.append(mine)
    table_ids = np.concatenate([ids[starts[0] : starts[1]], ids[starts[2] : starts[3]]])
    rows, sums = row_gradients(table_ids, np.concatenate(occurrences))
    weight[0][rows] -= np.float32(0.5) * sums
    assert np.array_equal(native.weight(0), weight[0])
    dirty = np.zeros(30, np.bool_)
    mark_rows(dirty, table_ids)
    assert np.array_equal(native.dirty(0), dirty)


def test_per_sample_weights_need_sum_pooling() -> None:
    engine = Engine(rows=(5,), pooling="max")
    with pytest.raises(ValueError, match="expected sum pooling"):
        engine.lookup(np.array([1]), np.arange(2), np.ones(1, np.float32))


@pytest.mark.parametrize("pooling", ["sum", "mean", "max"])
@pytest.mark.parametrize("grad_scale", [1.0, 0.3])
def test_gradients_divided_by_how_often_a_row_comes(grad_scale: float, pooling: str) -> None:
    """The multiplicity is that of the whole batch; one factor with the scale of the gradient."""
    engine = Engine(
        rows=(20,),
        dim=6,
        optimizer="sgd",
        pooling=pooling,
        learning_rate=1.0,
        spec={"scale_grad_by_freq": True},
    )
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 4, 60)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = (20 * rng.random(bounds[-1]) ** 3).astype(np.int64)
    before = engine.native.weight(0).copy()
    out, batch = engine.lookup(ids, bounds)
    grad = rng.standard_normal(out.shape).astype(np.float32)
    assert engine.call("update", batch, grad, threads=2, grad_scale=grad_scale)
    if pooling == "max":
        _, position = largest(before, ids, bounds)
        occurrences = np.zeros((len(ids), 6), np.float32)
        bag, column = np.nonzero(position >= 0)
        occurrences[position[bag, column], column] = grad[bag, column]
    else:
        occurrences = occurrence_gradients(grad, bounds, pooling=pooling)
    rows, sums = row_gradients(ids, occurrences)
    counts = np.bincount(ids, minlength=20)[rows]
    assert (counts > 5).any()
    expected = before.copy()
    expected[rows] = before[rows] - sums * (np.float32(grad_scale) / counts.astype(np.float32))[:, None]
    assert np.array_equal(engine.native.weight(0), expected)
    assert np.array_equal(engine.native.counts(0)[rows], counts)


def test_gradients_for_torchs_optimizer_are_divided_too() -> None:
    engine = Engine(rows=(4,), dim=2, optimizer="none", spec={"scale_grad_by_freq": True, "dtype": "float64"})
    _, batch = engine.lookup(np.array([1, 1, 1, 3]), np.arange(5))
    grad = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [1.0, 1.0]])
    rows, values = engine.call("gradient", batch, grad, table=0, threads=1)
    assert rows.tolist() == [1, 3]
    assert np.array_equal(values, [[9.0 * (1 / 3), 13.0 * (1 / 3)], [1.0, 1.0]])
