"""Tables of every data type, pooled in every way, and features of several tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_native import (
    SGD,
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    PoolingType,
    RowWiseAdagrad,
)

IDS = torch.tensor([3, 3, 0, 7, 1, 1, 2, 8])
OFFSETS = torch.tensor([0, 3, 3, 4, 6, 6, 8])


def table(name: str, features: str, kind: DataType, pooling: PoolingType, dim: int = 5) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=9,
        embedding_dim=dim,
        feature_names=features.split(),
        data_type=kind,
        pooling=pooling,
    )


def pooled(weight: Tensor, pooling: PoolingType, ids: Tensor, bounds: list[int]) -> Tensor:
    bag = nn.EmbeddingBag.from_pretrained(
        weight, freeze=False, mode=pooling.value.lower(), include_last_offset=True
    )
    out: Tensor = bag(ids, torch.tensor(bounds))
    return out


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN, PoolingType.MAX])
@pytest.mark.parametrize("kind", list(DataType))
def test_output_is_in_float32_whatever_the_tables_hold(kind: DataType, pooling: PoolingType) -> None:
    wide = kind is DataType.FP64
    other = table("other", "y", kind if wide else DataType.FP32, PoolingType.SUM)
    collection = EmbeddingBagCollection([table("own", "x", kind, pooling), other], optimizer=None, seed=3)
    own, second = collection.parameters()
    assert str(own.dtype) == f"torch.{kind.dtype}"
    assert own.abs().max() > 0.1
    out = collection(IDS, OFFSETS)
    assert out.dtype == (torch.float64 if wide else torch.float32)
    precise = own.detach().double() if wide else own.detach().float()
    expected = torch.cat(
        [
            pooled(precise, pooling, IDS[:4], [0, 3, 3, 4]),
            pooled(second.detach(), PoolingType.SUM, IDS[4:], [0, 2, 2, 4]),
        ],
        dim=1,
    )
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert own.grad is not None
    assert own.grad.dtype == own.dtype
    assert own.grad.to_dense()[[4, 5, 6]].abs().sum() == 0


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN, PoolingType.MAX])
def test_fused_step_is_torchs(pooling: PoolingType) -> None:
    collection = EmbeddingBagCollection([table("own", "x y", DataType.FP32, pooling)], optimizer=SGD(lr=0.1))
    weight = nn.Parameter(collection.embedding_bags["own"].weight.detach().clone())
    bag = nn.EmbeddingBag(9, 5, mode=pooling.value.lower(), include_last_offset=True, _weight=weight)
    out = collection(IDS, OFFSETS)
    expected = bag(IDS, OFFSETS).view(2, 3, 5).transpose(0, 1).reshape(3, 10)
    torch.testing.assert_close(out, expected)
    grad = torch.randn(3, 10)
    out.backward(grad)
    expected.backward(grad)
    assert bag.weight.grad is not None
    torch.testing.assert_close(collection.embedding_bags["own"].weight, weight - 0.1 * bag.weight.grad)


@pytest.mark.parametrize("kind", [DataType.FP16, DataType.BF16])
def test_half_tables_follow_the_float32_step(kind: DataType) -> None:
    """One step rounds once: at most one unit in the last place away."""
    half, full = (
        EmbeddingBagCollection(
            [table("own", "x y", data_type, PoolingType.SUM)], optimizer=RowWiseAdagrad(lr=0.05), seed=3
        )
        for data_type in (kind, DataType.FP32)
    )
    with torch.no_grad():
        full.embedding_bags["own"].weight.copy_(half.embedding_bags["own"].weight.float())
    for collection in (half, full):
        collection(IDS, OFFSETS).square().sum().backward()
    np.testing.assert_array_equal(half.engine.state(0), full.engine.state(0))
    unit = torch.finfo(half.embedding_bags["own"].weight.dtype).eps
    torch.testing.assert_close(
        half.embedding_bags["own"].weight.float(), full.embedding_bags["own"].weight, rtol=unit, atol=1e-6
    )


def test_feature_of_two_tables_is_looked_up_in_both() -> None:
    tables = [
        table("a", "x y", DataType.FP32, PoolingType.SUM),
        table("b", "x", DataType.FP32, PoolingType.SUM, 2),
    ]
    collection = EmbeddingBagCollection(tables, optimizer=SGD(lr=1.0))
    assert collection.feature_names == ["x", "y", "x"]
    first, second = (weight.detach().clone() for weight in collection.parameters())
    out = collection(torch.tensor([1, 4, 1]), torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(out[0], torch.cat([first[1], first[4], second[1]]))
    out.sum().backward()
    torch.testing.assert_close(collection.embedding_bags["a"].weight[1], first[1] - 1.0)
    torch.testing.assert_close(collection.embedding_bags["b"].weight[1], second[1] - 1.0)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_has_the_layout_asked_for(sparse: bool) -> None:
    collection = EmbeddingBagCollection(
        [table("own", "x y", DataType.FP32, PoolingType.SUM)], optimizer=None, sparse=sparse
    )
    collection(IDS, OFFSETS).sum().backward()
    grad = collection.embedding_bags["own"].weight.grad
    assert grad is not None
    assert grad.is_sparse is sparse
    dense = grad.to_dense() if sparse else grad
    assert dense[:, 0].tolist() == [1, 2, 1, 2, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        (["FP64"], {"optimizer": SGD(lr=0.1)}, "float64"),
        (["FP64", "FP32"], {"optimizer": None}, "float64"),
    ],
)
def test_double_precision_is_for_torchs_optimizers(
    tables: list[str], options: dict[str, Any], message: str
) -> None:
    configs = [table(f"t{at}", f"f{at}", DataType[kind], PoolingType.SUM) for at, kind in enumerate(tables)]
    with pytest.raises(ValueError, match=message):
        EmbeddingBagCollection(configs, **options)


@pytest.mark.parametrize("pooling", [PoolingType.MEAN, PoolingType.MAX])
def test_per_sample_weights_need_sums(pooling: PoolingType) -> None:
    collection = EmbeddingBagCollection([table("own", "x y", DataType.FP32, pooling)], optimizer=None)
    with pytest.raises(ValueError, match="sum pooling only"):
        collection(IDS, OFFSETS, torch.ones(8))


def test_weights_of_the_callers_are_used_in_place() -> None:
    tables = [
        table("a", "x", DataType.FP32, PoolingType.SUM),
        table("b", "y", DataType.FP16, PoolingType.SUM),
    ]
    first, second = nn.Parameter(torch.randn(9, 5)), torch.randn(9, 5).half()
    kept = second.clone()
    collection = EmbeddingBagCollection(tables, optimizer=SGD(lr=0.1), _weights=[first, second])
    assert collection.embedding_bags["a"].weight is first
    assert collection.embedding_bags["b"].weight.data_ptr() == second.data_ptr()
    assert collection.engine.weight(0).ctypes.data == first.data_ptr()
    collection(torch.tensor([1, 4]), torch.tensor([0, 1, 2])).sum().backward()
    assert (second != kept).any(dim=1).nonzero().flatten().tolist() == [4]
    for wrong, error, message in (
        ([first], ValueError, "each of 2 tables"),
        ([first, second.float()], TypeError, "'b': weight: expected float16, got float32"),
        ([first[:8], second], ValueError, r"'a': weight: expected shape \(9, 5\)"),
        ([torch.zeros(5, 9).t(), second], ValueError, "'a': weight: .*contiguous"),
    ):
        with pytest.raises(error, match=message):
            EmbeddingBagCollection(tables, optimizer=None, _weights=wrong)
