"""A module of two tables for every fused optimizer, and its steps."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from cpr_native import (
    SGD,
    Adagrad,
    Adam,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    PartialRowWiseAdam,
    RowWiseAdagrad,
)
from cpr_native.optim import FusedOptimizer

OPTIMIZERS: list[FusedOptimizer] = [
    SGD(lr=0.1, weight_decay=0.01),
    RowWiseAdagrad(lr=0.1, eps=1e-6, initial_accumulator=0.25),
    Adagrad(lr=0.1, initial_accumulator=0.5),
    Adam(lr=0.1, betas=(0.8, 0.95)),
    PartialRowWiseAdam(lr=0.1, weight_decay=0.02),
]
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda settings: settings.name)


def collection(optimizer: FusedOptimizer | None, seed: int = 0) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name="a", num_embeddings=20, embedding_dim=6, feature_names=["x", "y"]),
        EmbeddingBagConfig(name="b", num_embeddings=7, embedding_dim=3, feature_names=["z"]),
    ]
    return EmbeddingBagCollection(tables, optimizer=optimizer, seed=seed)


def step(module: EmbeddingBagCollection, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    ids = torch.cat([torch.randint(0, rows, (4,), generator=generator) for rows in (20, 20, 7)])
    out = module(ids, torch.arange(13))
    out.backward(torch.randn(out.shape, generator=generator))


def rows_of(module: EmbeddingBagCollection) -> list[Any]:
    engine = module.engine
    return [(engine.weight(t).tobytes(), engine.state(t), engine.counts(t).tobytes()) for t in range(2)]


def same(left: EmbeddingBagCollection, right: EmbeddingBagCollection) -> bool:
    return pickle.dumps(rows_of(left)) == pickle.dumps(rows_of(right))
