"""`torch.compile` of modules with options, dtypes and other poolings, and of modules that change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cpr_native import SGD, DataType, Embedding, EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig

IDS = torch.tensor([[1, 2], [2, 3]])
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "max_norm": (EmbeddingBag, {"max_norm": 0.5, "optimizer": SGD(lr=0.1)}),
    "max_norm without an optimizer": (EmbeddingBag, {"max_norm": 0.5}),
    "max_norm and padding": (Embedding, {"max_norm": 0.5, "padding_idx": 2, "optimizer": SGD(lr=0.1)}),
    "max": (EmbeddingBag, {"mode": "max", "optimizer": SGD(lr=0.1)}),
    "bfloat16": (EmbeddingBag, {"dtype": torch.bfloat16, "optimizer": SGD(lr=0.1)}),
    "float16 without an optimizer": (EmbeddingBag, {"dtype": torch.float16}),
    "float64": (EmbeddingBag, {"dtype": torch.float64}),
    "scale_grad_by_freq": (EmbeddingBag, {"scale_grad_by_freq": True}),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("case", list(CASES))
def test_option(case: str) -> None:
    kind, options = CASES[case]
    torch.manual_seed(0)
    module = kind(8, 4, **options)
    model = nn.Sequential(module, nn.Linear(4, 1, dtype=module.weight.dtype))
    plain = copy.deepcopy(model)
    for one in (model, plain):
        one[0].engine.clear_trackers(0, 0, 8, dirty=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        for one in (compiled, plain):
            one(IDS).pow(2).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(compiled.eval()(IDS), plain.eval()(IDS), rtol=1e-2, atol=1e-2)
    for name, ours in model.named_parameters():
        theirs = plain.get_parameter(name)
        torch.testing.assert_close((ours, ours.grad), (theirs, theirs.grad), rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(module.engine.trackers(0), plain[0].engine.trackers(0))


def test_a_change_of_dtype_is_followed() -> None:
    module = EmbeddingBag(8, 4, mode="sum", optimizer=SGD(lr=1.0))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for change, dtype in ((module.float, torch.float32), (module.half, torch.float16)):
        change()
        out = compiled(IDS)
        assert out.dtype == dtype
        out.sum().backward()
    assert module.engine.step == 2
    assert module.engine.counts(0).tolist() == [0, 2, 4, 2, 0, 0, 0, 0]


def test_collection_of_float64_tables() -> None:
    tables = [
        EmbeddingBagConfig(
            name=name, num_embeddings=5, embedding_dim=2, feature_names=[name], data_type=DataType.FP64
        )
        for name in "ab"
    ]
    model = EmbeddingBagCollection(tables, optimizer=None)
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for module in (compiled, plain):
        weights = torch.linspace(0, 1, 4, dtype=torch.float64)
        out = module(torch.tensor([1, 2, 2, 3]), torch.arange(5), weights)
        assert out.dtype == torch.float64
        out.pow(2).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad.to_dense(), theirs.grad.to_dense())
