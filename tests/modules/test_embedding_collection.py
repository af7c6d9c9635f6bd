"""`EmbeddingCollection`: a row an id, beside torch's Embedding and TorchRec's EmbeddingCollection."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor
from torchrec_cases import gradients, jagged, share_weights, torchrec_rows

from cpr_native import SGD, Embedding, EmbeddingCollection, EmbeddingConfig, RowWiseAdagrad, Trackers


def table(name: str, rows: int, features: str, dim: int = 6) -> EmbeddingConfig:
    return EmbeddingConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=features.split())


TABLES = (table("users", 50, "history target"), table("products", 9, "item"))
SHARED = (table("users", 50, "history item"), table("products", 9, "item other"))
SIZES = {"history": 50, "target": 50, "item": 9}
REORDERED = {"unused": 3, "item": 9, "history": 50, "target": 50}
IDS = torch.tensor([7, 7, 3, 49, 0, 8, 8, 8, 1])
# history: [7, 7], [3]; target: [], [49]; item: [0, 8, 8], [8, 1]
OFFSETS = torch.tensor([0, 2, 3, 3, 4, 7, 9])


def weights_of(collection: EmbeddingCollection) -> list[Tensor]:
    return [weight.detach().clone() for weight in collection.parameters()]


def test_rows_of_the_ids_by_feature() -> None:
    collection = EmbeddingCollection(TABLES, optimizer=None)
    users, products = weights_of(collection)
    out = collection(IDS, OFFSETS)
    assert list(out) == ["history", "target", "item"]
    assert torch.equal(out["history"], users[[7, 7, 3]])
    assert torch.equal(out["target"], users[[49]])
    assert torch.equal(out["item"], products[[0, 8, 8, 8, 1]])
    assert all(values.is_contiguous() for values in out.values())
    one_bag_each = collection(IDS, torch.tensor([0, 3, 4, 9]))
    assert all(torch.equal(one_bag_each[name], out[name]) for name in out)


def test_state_dict_has_torchrecs_keys() -> None:
    ours, theirs = EmbeddingCollection(TABLES, optimizer=None), torchrec_rows(TABLES)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.embedding_names_by_table() == theirs.embedding_names_by_table()
    assert ours.embedding_dim() == theirs.embedding_dim() == 6
    assert [config.name for config in ours.embedding_configs()] == ["users", "products"]
    bound = (1 / 50) ** 0.5
    assert bound / 2 < ours.state_dict()["embeddings.users.weight"].abs().max() <= bound


@pytest.mark.parametrize("tables", [TABLES, SHARED], ids=["own features", "shared feature"])
@pytest.mark.parametrize("need_indices", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
def test_is_torchrecs(tables: Any, need_indices: bool, sizes: dict[str, int]) -> None:
    if tables is SHARED:
        sizes = {**sizes, "other": 9}
    ours = EmbeddingCollection(tables, optimizer=None, need_indices=need_indices)
    theirs = torchrec_rows(tables, need_indices=need_indices)
    share_weights(theirs, ours)
    batch = jagged(sizes, 6)
    out, expected = ours(batch), theirs(batch)
    assert list(out) == list(expected)
    loss, expected_loss = torch.zeros(()), torch.zeros(())
    for name, values in expected.items():
        assert type(out[name]) is JaggedTensor
        assert torch.equal(out[name].values(), values.values())
        assert torch.equal(out[name].lengths(), values.lengths())
        assert torch.equal(out[name].offsets(), values.offsets())
        assert (out[name].weights_or_none() is None) == (not need_indices)
        if need_indices:
            assert torch.equal(out[name].weights(), values.weights())
        factor = torch.randn(values.values().shape)
        loss = loss + (out[name].values() * factor).sum()
        expected_loss = expected_loss + (values.values() * factor).sum()
    loss.backward()
    expected_loss.backward()
    for name, value in gradients(theirs).items():
        assert bool(value.any())
        torch.testing.assert_close(gradients(ours)[name], value)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_has_the_layout_asked_for(sparse: bool) -> None:
    collection = EmbeddingCollection(TABLES, optimizer=None, sparse=sparse)
    collection(IDS, OFFSETS)["item"].sum().backward()
    users, products = collection.parameters()
    assert products.grad is not None
    assert users.grad is not None
    assert products.grad.is_sparse is sparse
    assert gradients(collection)["embeddings.products.weight"][:, 0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 3]
    assert not gradients(collection)["embeddings.users.weight"].any()


def test_v8_counts_what_was_trained_and_nothing_else() -> None:
    collection = EmbeddingCollection(TABLES, optimizer=SGD(lr=0.5))
    with torch.no_grad():
        collection(IDS, OFFSETS)
    collection.eval()(IDS, OFFSETS)
    assert not collection.engine.counts(0).any()
    users, products = weights_of(collection)
    out = collection.train()(IDS, OFFSETS)
    (out["history"].sum() + out["target"].sum() * 3).backward()
    after_users, after_products = weights_of(collection)
    assert collection.engine.counts(0).nonzero()[0].tolist() == [3, 7, 49]
    assert collection.engine.counts(0)[[3, 7, 49]].tolist() == [1, 2, 1]
    assert collection.engine.counts(1).tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 3]
    expected = users.clone()
    for row, step in ((3, 0.5), (7, 1.0), (49, 1.5)):
        expected[row] -= step
    torch.testing.assert_close(after_users, expected)
    assert torch.equal(after_products, products)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_batch_is_torchs_whatever_the_threads(threads: int) -> None:
    tables = (table("users", 5000, "history target", 16), table("products", 300, "item", 16))
    generator = torch.Generator().manual_seed(1)
    counts = (30_000, 700, 12_345)
    bounds = torch.tensor([0, *counts]).cumsum(0)
    ids = torch.cat(
        [
            torch.randint(0, rows, (n,), generator=generator)
            for rows, n in zip((5000, 5000, 300), counts, strict=True)
        ]
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        collection = EmbeddingCollection(tables, optimizer=SGD(lr=0.5), seed=4)
        users, products = weights_of(collection)
        out = collection(ids, bounds)
        torch.cat(list(out.values())).sum().backward()
        assert torch.equal(out["history"], users[ids[:30_000]])
        assert torch.equal(out["item"], products[ids[30_700:]])
        for weight, rows, own in (
            (collection.get_parameter("embeddings.users.weight"), users, ids[:30_700]),
            (collection.get_parameter("embeddings.products.weight"), products, ids[30_700:]),
        ):
            expected = rows - 0.5 * torch.bincount(own, minlength=len(rows)).unsqueeze(1)
            torch.testing.assert_close(weight.detach(), expected)
    finally:
        torch.set_num_threads(before)


def test_row_wise_adagrad_is_that_of_embedding() -> None:
    optimizer = RowWiseAdagrad(lr=0.3)
    collection = EmbeddingCollection([table("users", 50, "history")], optimizer=optimizer)
    single = Embedding(50, 6, _weight=weights_of(collection)[0], optimizer=optimizer)
    for _ in range(3):
        ids = torch.randint(0, 50, (40,))
        collection(ids, torch.tensor([0, 10, 40]))["history"].square().sum().backward()
        single(ids).square().sum().backward()
    assert torch.equal(collection.get_parameter("embeddings.users.weight"), single.weight)


@pytest.mark.parametrize("optimizer", [None, SGD(lr=0.1)])
def test_v27_features_without_ids(optimizer: Any) -> None:
    collection = EmbeddingCollection(TABLES, optimizer=optimizer)
    empty = torch.zeros(0, dtype=torch.int64)
    for offsets in (torch.zeros(7), torch.zeros(4), torch.zeros(1)):
        out = collection(empty, offsets.long())
        assert [tuple(values.shape) for values in out.values()] == [(0, 6)] * 3
        torch.cat(list(out.values())).sum().backward()
    out = collection(torch.tensor([4]), torch.tensor([0, 0, 0, 1]))
    assert [len(values) for values in out.values()] == [0, 0, 1]
    jagged_out = collection(jagged(SIZES, 3, longest=0))
    assert all(tuple(values.values().shape) == (0, 6) for values in jagged_out.values())


def test_v18_copies_have_rows_state_and_trackers() -> None:
    collection = EmbeddingCollection(TABLES, optimizer=RowWiseAdagrad(lr=0.1))
    torch.cat(list(collection(IDS, OFFSETS).values())).sum().backward()
    for other in (copy.deepcopy(collection), pickle.loads(pickle.dumps(collection))):
        for module in (other, collection):
            module.zero_grad()
        assert (other.engine.counts(0) == collection.engine.counts(0)).all()
        results = []
        for module in (copy.deepcopy(collection), other):
            torch.cat(list(module(IDS, OFFSETS).values())).sum().backward()
            results.append(weights_of(module))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("ids", "offsets", "error", "message"),
    [
        (IDS, OFFSETS[:-2], ValueError, r"features \* batch \+ 1"),
        (IDS, torch.tensor([0, 3, 4, 8]), ValueError, "number of ids, 9"),
        (IDS, torch.tensor([0, 3, 2, 3, 4, 7, 9]), ValueError, r"offsets\[2\]"),
        (IDS, torch.tensor([1, 3, 4, 9]), ValueError, r"offsets\[0\]"),
        (IDS.reshape(3, 3), OFFSETS, ValueError, "1-D"),
        (IDS.double(), OFFSETS, TypeError, "int32 or int64"),
        (IDS, None, TypeError, "offsets: expected a tensor"),
        (torch.tensor([7, 7, 3, 49, 0, 8, 8, 9, 1]), OFFSETS, IndexError, r"products.*\b9\b.*position 7"),
    ],
)
def test_wrong_input_changes_nothing(ids: Any, offsets: Any, error: type[Exception], message: str) -> None:
    collection = EmbeddingCollection(TABLES, optimizer=SGD(lr=0.1))
    before = weights_of(collection)
    with pytest.raises(error, match=message):
        collection(ids, offsets)
    assert not collection.engine.counts(0).any()
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(collection), strict=True))


def test_wrong_keyed_input() -> None:
    collection = EmbeddingCollection(TABLES, optimizer=None)
    with pytest.raises(ValueError, match="no key 'target', 'item'"):
        collection(jagged({"history": 50}, 2))
    with pytest.raises(TypeError, match="has its own"):
        collection(jagged(SIZES, 2), OFFSETS)
    with pytest.raises(ValueError, match="one batch size"):
        collection(
            KeyedJaggedTensor(
                keys=list(SIZES),
                values=IDS[:4],
                lengths=torch.ones(4, dtype=torch.int64),
                stride_per_key_per_rank=torch.tensor([[2], [1], [1]], dtype=torch.int32),
            )
        )


@pytest.mark.parametrize(
    ("tables", "options", "error", "message"),
    [
        ([], {}, ValueError, "at least one table"),
        ([TABLES[0], TABLES[0]], {}, ValueError, "twice: users"),
        ([TABLES[0], table("other", 3, "a", dim=7)], {}, ValueError, "embedding_dim.*6 and 7"),
        (TABLES, {"trackers": {"nobody": Trackers()}}, ValueError, "nobody"),
        (TABLES, {"optimizer": "sgd"}, TypeError, "optimizer"),
    ],
)
def test_refused_at_construction(
    tables: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        EmbeddingCollection(tables, **{"optimizer": None, **options})
