"""Shapes and settings of training that are known to work."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cpr_native.models.dlrm import DLRMConfig
from cpr_native.optim import FusedOptimizer, RowWiseAdagrad

# Widths of the public DLRM scripts.
KAGGLE = DLRMConfig()
TERABYTE = DLRMConfig(embedding_dim=64, bottom=(512, 256, 64), top=(512, 512, 256, 1))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train a DLRM in one pass.

    Args:
        model: widths.
        batch_size: samples per step, at least 1.
        table_optimizer: fused optimizer of the tables.
        dense_lr: learning rate of the MLPs' Adagrad, above 0.
    """

    model: DLRMConfig
    batch_size: int
    table_optimizer: FusedOptimizer
    dense_lr: float

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {self.batch_size}")
        if not self.dense_lr > 0.0:
            raise ValueError(f"dense_lr: expected above 0, got {self.dense_lr}")

    def dense_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return Adagrad over `parameters` at the recipe's learning rate."""
        return torch.optim.Adagrad(parameters, lr=self.dense_lr)


# One pass over the first 90 % of a real sample of 137,139 lines, tables of
# `hashed_table_sizes(max_rows=100_000)`: AUC 0.753 to 0.755 (three seeds) on the last 10 %.
CRITEO = Recipe(model=KAGGLE, batch_size=128, table_optimizer=RowWiseAdagrad(lr=0.02), dense_lr=0.005)
# Small MLPs, so that most of what the model learns is in the tables. One pass over 270,000 samples of the
# generator, tables of `kaggle_table_sizes(0.01)`: AUC 0.758 on the next 30,000, where the planted signal
# itself reaches 0.80.
DEMO = Recipe(
    model=DLRMConfig(bottom=(128, 64, 16), top=(128, 64, 1)),
    batch_size=512,
    table_optimizer=RowWiseAdagrad(lr=0.01),
    dense_lr=0.01,
)
