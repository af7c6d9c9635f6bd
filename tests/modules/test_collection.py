"""`EmbeddingBagCollection` against the NumPy references, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from reference import ReferenceCollection, per_sample_weight_gradients
from torch import Tensor, nn

from cpr_native import (
    SGD,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    PoolingType,
    RowWiseAdagrad,
    Trackers,
)
from cpr_native.optim import FusedOptimizer


def config(name: str, rows: int, dim: int, features: str, pooling: str = "sum") -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=features.split(),
        pooling=PoolingType[pooling.upper()],
    )


TABLES = (
    config("users", 50, 4, "viewer owner"),
    config("items", 9, 37, "item", "mean"),
    config("ads", 3, 1, "ad"),
)
SUMS = (config("users", 50, 4, "viewer owner"), config("items", 9, 37, "item"))
OPTIMIZERS: tuple[FusedOptimizer, ...] = (
    SGD(lr=0.1),
    RowWiseAdagrad(lr=0.3, eps=1e-6, initial_accumulator=0.25),
)


def reference_of(collection: EmbeddingBagCollection, optimizer: FusedOptimizer) -> ReferenceCollection:
    configs = collection.embedding_bag_configs()
    adagrad = isinstance(optimizer, RowWiseAdagrad)
    return ReferenceCollection(
        [collection.engine.weight(table) for table in range(len(configs))],
        [table for table, config in enumerate(configs) for _ in config.feature_names],
        optimizer="row_wise_adagrad" if adagrad else "sgd",
        lr=optimizer.lr,
        eps=getattr(optimizer, "eps", 0.0),
        initial_state=getattr(optimizer, "initial_accumulator", 0.0),
        poolings=[config.pooling.value.lower() for config in configs],
    )


def batches(
    tables: tuple[EmbeddingBagConfig, ...], count: int, size: int = 12, longest: int = 70
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Bags of 0 to `longest` ids, so that sums of more than 32 terms occur."""
    generator = np.random.default_rng(5)
    for _ in range(count):
        lengths = generator.integers(0, longest, sum(len(table.feature_names) for table in tables) * size)
        lengths[generator.random(len(lengths)) < 0.3] = 0
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        bounds = [table.num_embeddings for table in tables for _ in table.feature_names]
        ids = [
            generator.integers(0, rows, offsets[(feature + 1) * size] - offsets[feature * size])
            for feature, rows in enumerate(bounds)
        ]
        weights = generator.standard_normal(offsets[-1]).astype(np.float32)
        yield torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets), torch.from_numpy(weights)


def assert_same(collection: EmbeddingBagCollection, expected: ReferenceCollection) -> None:
    for table, weight in enumerate(expected.weights):
        np.testing.assert_array_equal(collection.engine.weight(table), weight)
        np.testing.assert_array_equal(collection.engine.counts(table), expected.counts[table])
        np.testing.assert_array_equal(collection.engine.dirty(table), expected.dirty[table])
        state = collection.engine.state(table)
        if state is not None:
            np.testing.assert_array_equal(state, expected.states[table])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_references(optimizer: FusedOptimizer, weighted: bool, threads: int) -> None:
    tables = SUMS if weighted else TABLES
    collection = EmbeddingBagCollection(tables, optimizer=optimizer, seed=3)
    expected = reference_of(collection, optimizer)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for ids, offsets, weights in batches(tables, 4):
            own = weights if weighted else None
            out = collection(ids, offsets, own)
            scale = weights.numpy() if weighted else None
            np.testing.assert_array_equal(
                out.detach().numpy(), expected.lookup(ids.numpy(), offsets.numpy(), scale)
            )
            grad = torch.randn(out.shape)
            out.backward(grad)
            expected.update(ids.numpy(), offsets.numpy(), grad.numpy(), scale)
            assert_same(collection, expected)
    finally:
        torch.set_num_threads(before)
    assert all(weight.grad is None for weight in collection.parameters())


def test_grad_scale_multiplies_the_gradient() -> None:
    optimizer = SGD(lr=0.1)
    collection = EmbeddingBagCollection(TABLES, optimizer=optimizer)
    expected = reference_of(collection, optimizer)
    collection.grad_scale = 0.3
    for ids, offsets, _ in batches(TABLES, 2):
        out = collection(ids, offsets)
        grad = torch.randn(out.shape)
        out.backward(grad)
        expected.update(ids.numpy(), offsets.numpy(), grad.numpy(), grad_scale=0.3)
    assert_same(collection, expected)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="grad_scale"):
            collection.grad_scale = bad
    assert collection.grad_scale == 0.3


def test_per_sample_weights_gradient_uses_the_weights_before_the_update() -> None:
    collection = EmbeddingBagCollection(SUMS[1:], optimizer=SGD(lr=1.0))
    weight = collection.engine.weight(0).copy()
    for ids, offsets, weights in batches(SUMS[1:], 1):
        weights.requires_grad_()
        out = collection(ids, offsets, weights)
        grad = torch.randn(out.shape)
        out.backward(grad)
        assert weights.grad is not None
        np.testing.assert_allclose(
            weights.grad.numpy(),
            per_sample_weight_gradients(weight, ids.numpy(), offsets.numpy(), grad.numpy()),
            rtol=1e-4,
            atol=1e-5,
        )
    assert not np.array_equal(collection.engine.weight(0), weight)


def test_int32_gives_the_same_bits() -> None:
    results = []
    for dtype in (torch.int32, torch.int64):
        collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1))
        for ids, offsets, _ in batches(TABLES, 1):
            collection(ids.to(dtype), offsets).sum().backward()
            collection(ids, offsets.to(dtype)).sum().backward()
        results.append([collection.engine.weight(table) for table in range(len(TABLES))])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_initial_rows_are_a_function_of_seed_and_table() -> None:
    first, again, other = (
        EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1), seed=seed).state_dict() for seed in (1, 1, 2)
    )
    for key, weight in first.items():
        assert torch.equal(weight, again[key])
        assert not torch.equal(weight, other[key])
    bound = (1 / 50) ** 0.5
    users = first["embedding_bags.users.weight"]
    assert bool((users.abs() <= bound).all())
    assert users.abs().max() > bound / 2
    reordered = EmbeddingBagCollection(TABLES[::-1], optimizer=SGD(lr=0.1), seed=1).state_dict()
    assert torch.equal(reordered["embedding_bags.users.weight"], users)


def test_state_dict_has_torchrecs_keys_and_aliases_the_engine() -> None:
    collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1))
    state = collection.state_dict()
    assert list(state) == [f"embedding_bags.{name}.weight" for name in ("users", "items", "ads")]
    assert state["embedding_bags.items.weight"].data_ptr() == collection.engine.weight(1).ctypes.data
    assert collection.embedding_bags["ads"].weight is collection.get_parameter("embedding_bags.ads.weight")
    assert collection.feature_names == ["viewer", "owner", "item", "ad"]
    assert collection.embedding_bag_configs() == list(TABLES)


def test_torch_optimizer_gets_a_sparse_gradient_of_each_table() -> None:
    ours = EmbeddingBagCollection(TABLES, optimizer=None)
    bags = {
        table.name: nn.EmbeddingBag(
            table.num_embeddings,
            table.embedding_dim,
            mode=table.pooling.value.lower(),
            include_last_offset=True,
            _weight=ours.state_dict()[f"embedding_bags.{table.name}.weight"].clone(),
        )
        for table in TABLES
    }
    size, features = 12, [table.name for table in TABLES for _ in table.feature_names]
    for ids, offsets, _ in batches(TABLES, 1, size):
        outputs = []
        for feature, name in enumerate(features):
            own = offsets[feature * size : (feature + 1) * size + 1]
            outputs.append(bags[name](ids[own[0] : own[-1]], own - own[0]))
        theirs = torch.cat(outputs, dim=1)
        out = ours(ids, offsets)
        torch.testing.assert_close(out, theirs)
        grad = torch.randn(out.shape)
        out.backward(grad)
        theirs.backward(grad)
    for table in TABLES:
        grad = ours.get_parameter(f"embedding_bags.{table.name}.weight").grad
        assert grad is not None
        assert grad.is_sparse
        torch.testing.assert_close(grad.to_dense(), bags[table.name].weight.grad, rtol=1e-4, atol=1e-4)
    assert ours.engine.step == 1


@pytest.mark.parametrize(
    ("ids", "offsets", "error", "message"),
    [
        ([1, 2, 0], [0, 1, 2], ValueError, "features"),
        ([1, 2, 0], [], ValueError, "features"),
        ([[1, 2, 0]], [0, 1, 2, 3, 3], ValueError, "1-D"),
        ([1, 2, 0], [0, 1, 2, 3, 4], ValueError, "offsets"),
        ([1, 2, 0], [0, 1, 2, 2, 2], ValueError, "offsets"),
        ([1, 2, 0], [0, 2, 1, 3, 3], ValueError, "offsets"),
        ([1, 2, 9], [0, 1, 2, 3, 3], IndexError, r"(?=.*items)(?=.*\b9\b)(?=.*position 2\b)"),
    ],
)
def test_wrong_input_changes_nothing(ids: Any, offsets: Any, error: type[Exception], message: str) -> None:
    collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1))
    before = [weight.clone() for weight in collection.state_dict().values()]
    with pytest.raises(error, match=message):
        collection(torch.tensor(ids), torch.tensor(offsets, dtype=torch.int64))
    for table, weight in enumerate(collection.state_dict().values()):
        assert torch.equal(weight, before[table])
        assert not collection.engine.counts(table).any()


def test_per_sample_weights_need_sum_pooling_everywhere() -> None:
    collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1))
    with pytest.raises(ValueError, match="mean"):
        collection(torch.tensor([1]), torch.tensor([0, 1, 1, 1, 1]), torch.ones(1))


@pytest.mark.parametrize(
    ("tables", "options", "error", "message"),
    [
        ([], {}, ValueError, "at least one table"),
        ([TABLES[0], TABLES[0]], {}, ValueError, "table names.*users"),
        ([config("half", 3, 2, "a")], {}, ValueError, "half"),
        (TABLES, {"trackers": {"nobody": Trackers()}}, ValueError, "nobody"),
        (TABLES, {"optimizer": torch.optim.SGD}, TypeError, "optimizer"),
        (TABLES, {"max_staging_bytes": 0}, ValueError, "max_staging_bytes"),
    ],
)
def test_refused_at_construction(
    tables: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EmbeddingBagCollection(tables, **{"optimizer": SGD(lr=0.1), **options})


def test_trackers_per_table() -> None:
    trackers = {"users": Trackers(mfu=False, ssu=False), "items": Trackers(dirty=False)}
    collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1), trackers=trackers)
    collection(torch.tensor([1, 2, 3, 0]), torch.tensor([0, 1, 2, 3, 4])).sum().backward()
    engine = collection.engine
    assert [int(engine.counts(table).sum()) for table in range(3)] == [0, 1, 1]
    assert [int(engine.dirty(table).sum()) for table in range(3)] == [2, 0, 1]


def test_mark_dirty() -> None:
    collection = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.1))
    collection.mark_dirty("items", [1, 4])
    assert collection.engine.dirty(1).nonzero()[0].tolist() == [1, 4]
    collection.mark_dirty("ads")
    assert collection.engine.dirty(2).all()
    with pytest.raises(KeyError, match="nobody"):
        collection.mark_dirty("nobody")
    with pytest.raises(IndexError, match="9"):
        collection.mark_dirty("items", torch.tensor([9]))
