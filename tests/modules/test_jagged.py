"""KeyedJaggedTensor in and KeyedTensor out, beside TorchRec's EmbeddingBagCollection."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from device_memory import place_for_test
from device_twins import assert_bits
from device_twins import assert_same as device_same
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor
from torchrec_cases import gradients, jagged, share_weights, torchrec_bags

from cpr_native import SGD, EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
from cpr_native.modules._jagged import bags_of


def table(name: str, rows: int, dim: int, features: str, pooling: str = "SUM") -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=features.split(),
        pooling=PoolingType[pooling],
    )


SUMS = (table("users", 50, 4, "viewer owner"), table("products", 9, 6, "item"))
MEANS = (table("users", 50, 4, "viewer owner", "MEAN"), table("products", 9, 6, "item"))
# "item" is looked up in two tables.
SHARED = (table("users", 50, 4, "viewer item"), table("products", 9, 6, "item other", "MEAN"))
SIZES = {"viewer": 50, "owner": 50, "item": 9}
REORDERED = {"unused": 3, "item": 9, "viewer": 50, "owner": 50, "last": 2}


def pair(tables: Any, *, weighted: bool = False, **options: Any) -> tuple[Any, Any]:
    ours = EmbeddingBagCollection(tables, optimizer=None, is_weighted=weighted, **options)
    theirs = torchrec_bags(tables, weighted=weighted)
    share_weights(theirs, ours)
    return ours, theirs


def assert_same_training(ours: Any, theirs: Any, batch: KeyedJaggedTensor) -> None:
    out, expected = ours(batch), theirs(batch)
    assert type(out) is KeyedTensor
    assert out.keys() == expected.keys()
    assert out.length_per_key() == expected.length_per_key()
    torch.testing.assert_close(out.values(), expected.values())
    for key, values in expected.to_dict().items():
        torch.testing.assert_close(out[key], values)
    grad = torch.randn(expected.values().shape)
    out.values().backward(grad)
    theirs_grad = grad.clone()
    expected.values().backward(theirs_grad)
    for name, value in gradients(theirs).items():
        torch.testing.assert_close(gradients(ours)[name], value)


@pytest.mark.parametrize("tables", [SUMS, MEANS], ids=["sum", "mean"])
@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weights ignored"])
def test_is_torchrecs(tables: Any, sizes: dict[str, int], weights: bool) -> None:
    assert_same_training(*pair(tables), jagged(sizes, 7, weighted=weights))


@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
def test_weighted_is_torchrecs(sizes: dict[str, int]) -> None:
    assert_same_training(*pair(SUMS, weighted=True), jagged(sizes, 7, weighted=True))


@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
def test_gradient_of_the_weights_is_torchrecs(sizes: dict[str, int]) -> None:
    ours, theirs = pair(SUMS, weighted=True)
    grads = []
    for module in (ours, theirs):
        batch = jagged(sizes, 7, weighted=True)
        batch.weights().requires_grad_()
        module(batch).values().square().sum().backward()
        grads.append(batch.weights().grad)
    assert bool(grads[1].any())
    torch.testing.assert_close(*grads)


def test_feature_of_two_tables_has_torchrecs_names() -> None:
    ours, theirs = pair(SHARED)
    batch = jagged({"other": 9, "viewer": 50, "item": 9}, 6)
    assert ours(batch).keys() == ["viewer", "item@users", "item@products", "other"]
    assert ours.feature_names == ["viewer", "item", "item", "other"]
    assert_same_training(ours, theirs, batch)


def test_fused_update_is_that_of_the_tensors() -> None:
    first, second = (EmbeddingBagCollection(SUMS, optimizer=SGD(lr=0.1), seed=2) for _ in range(2))
    batch, plain = jagged(REORDERED, 7), bags_of(jagged(REORDERED, 7), first.feature_names, weighted=False)
    first(batch).values().square().sum().backward()
    second(plain.ids, plain.offsets).square().sum().backward()
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
    assert first.engine.counts(0).sum() == second.engine.counts(0).sum() > 0


@pytest.mark.parametrize("weighted", [False, True])
def test_keys_in_order_are_not_copied(weighted: bool) -> None:
    batch = jagged(SIZES, 7, weighted=weighted)
    bags = bags_of(batch, ["viewer", "owner", "item"], weighted=weighted)
    assert bags.ids is batch.values()
    assert bags.offsets.data_ptr() == batch.offsets().data_ptr()
    assert bags.weights is batch.weights_or_none()
    leading = bags_of(batch, ["viewer", "owner"], weighted=weighted)
    assert leading.ids.data_ptr() == batch.values().data_ptr()
    assert leading.offsets.data_ptr() == batch.offsets().data_ptr()


def test_input_is_left_alone() -> None:
    batch = jagged(REORDERED, 7, weighted=True)
    before = [batch.values().clone(), batch.lengths().clone(), batch.weights().clone(), list(batch.keys())]
    EmbeddingBagCollection(SUMS, optimizer=SGD(lr=0.1))(batch).values().sum().backward()
    after = [batch.values(), batch.lengths(), batch.weights(), batch.keys()]
    assert all(torch.equal(a, b) for a, b in zip(before[:3], after[:3], strict=True))
    assert before[3] == after[3]


@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
def test_v27_empty_bags_and_an_empty_batch(sizes: dict[str, int]) -> None:
    ours, theirs = pair(SUMS)
    assert_same_training(ours, theirs, jagged(sizes, 4, longest=0))
    empty = KeyedJaggedTensor(
        keys=list(sizes), values=torch.zeros(0, dtype=torch.int64), lengths=torch.zeros(0, dtype=torch.int64)
    )
    out = ours(empty)
    assert (out.keys(), tuple(out.values().shape)) == (["viewer", "owner", "item"], (0, 14))
    out.values().sum().backward()
    assert all(not grad.any() for grad in gradients(ours).values())


def test_int32_offsets_and_ids() -> None:
    ours, theirs = pair(SUMS)
    batch = jagged(REORDERED, 7)
    narrow = KeyedJaggedTensor(keys=batch.keys(), values=batch.values().int(), lengths=batch.lengths().int())
    assert torch.equal(ours(narrow).values(), ours(batch).values())
    torch.testing.assert_close(ours(narrow).values(), theirs(narrow).values())


def test_weights_by_default_if_there_are_some() -> None:
    ours = EmbeddingBagCollection(SUMS, optimizer=None)
    assert ours.is_weighted()
    batch = jagged(SIZES, 7, weighted=True)
    expected = ours(batch.values(), batch.offsets(), batch.weights())
    assert torch.equal(ours(batch).values(), expected)
    plain = jagged(SIZES, 7)
    assert torch.equal(ours(plain).values(), ours(plain.values(), plain.offsets()))


def vbe() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(SIZES),
        values=torch.tensor([1, 2, 3, 4]),
        lengths=torch.tensor([1, 1, 1, 1]),
        stride_per_key_per_rank=torch.tensor([[2], [1], [1]], dtype=torch.int32),
        inverse_indices=(list(SIZES), torch.tensor([[0, 1], [0, 0], [0, 0]])),
    )


def deduplicated() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(SIZES),
        values=torch.tensor([1, 2, 3]),
        lengths=torch.tensor([1, 1, 1]),
        inverse_indices=(list(SIZES), torch.tensor([[0, 0], [0, 0], [0, 0]])),
    )


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (vbe(), ValueError, "one batch size for all keys"),
        (deduplicated(), ValueError, "one batch size for all keys"),
        (jagged({"viewer": 50, "item": 9}, 3, weighted=True), ValueError, "no key 'owner', got"),
        (jagged(SIZES, 3), ValueError, "expected weights"),
        (jagged({**SIZES, "item": 90}, 40, weighted=True), IndexError, "products"),
    ],
    ids=["vbe", "inverse indices", "missing key", "no weights", "bad id"],
)
def test_refused(batch: KeyedJaggedTensor, error: type[Exception], message: str) -> None:
    ours = EmbeddingBagCollection(SUMS, optimizer=SGD(lr=0.1), is_weighted=True)
    with pytest.raises(error, match=message):
        ours(batch)
    assert not ours.engine.counts(0).any()


def test_broken_lengths_are_refused() -> None:
    ours = EmbeddingBagCollection(SUMS, optimizer=None)
    for keys in (list(SIZES), ["item", "viewer", "owner"]):
        lengths = torch.tensor([1, 1, 2])
        with pytest.raises(ValueError, match="offsets"):
            ours(KeyedJaggedTensor(keys=keys, values=torch.tensor([1, 2]), lengths=lengths))
    with pytest.raises(ValueError, match="offsets"):
        ours(KeyedJaggedTensor(keys=["a", *SIZES], values=torch.tensor([1, 2]), lengths=torch.ones(2).long()))


def test_other_arguments_beside_one_are_refused() -> None:
    ours, batch = EmbeddingBagCollection(SUMS, optimizer=None), jagged(SIZES, 3)
    with pytest.raises(TypeError, match="expected None"):
        ours(batch, batch.offsets())
    with pytest.raises(TypeError, match="ids: expected a tensor, got dict"):
        ours({"viewer": batch.values()})


def test_torchrec_is_not_imported_for_it() -> None:
    program = """
import sys, torch
from cpr_native import SGD, EmbeddingBagCollection, EmbeddingBagConfig, convert
tables = [EmbeddingBagConfig(name="t", num_embeddings=4, embedding_dim=2, feature_names=["f"])]
EmbeddingBagCollection(tables, optimizer=SGD(lr=0.1))(torch.tensor([1]), torch.tensor([0, 1]))
convert(torch.nn.EmbeddingBag(3, 2))
print(sorted({name.split(".")[0] for name in sys.modules} & {"torchrec", "fbgemm_gpu", "tensordict"}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "[]")


@pytest.mark.parametrize("sizes", [SIZES, REORDERED], ids=["in order", "reordered"])
def test_tables_on_a_device(sizes: dict[str, int]) -> None:
    place = place_for_test()
    module, twin = (
        EmbeddingBagCollection(SUMS, optimizer=SGD(lr=0.1), device=device, max_staging_bytes=2**20)
        for device in (place, None)
    )
    batch = jagged(sizes, 7, weighted=True)
    outs = [each(batch.to(each.device)) for each in (module, twin)]
    for out in outs:
        out.values().sum().backward()
    assert type(outs[0]) is KeyedTensor
    assert outs[0].keys() == outs[1].keys()
    assert_bits(outs[0].values(), outs[1].values())
    device_same(module, twin)
