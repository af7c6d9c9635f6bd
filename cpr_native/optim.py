"""Settings of the fused optimizers, which update rows inside the backward pass. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["SGD", "FusedOptimizer", "RowWiseAdagrad"]


def _check_learning_rate(lr: float) -> None:
    if not (math.isfinite(lr) and lr >= 0.0):
        raise ValueError(f"lr: expected a finite number >= 0, got {lr}")


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent: w = w - lr * g for every row of the batch.

    Args:
        lr: learning rate, finite and at least 0.

    Raises:
        ValueError: `lr` out of its range.
    """

    lr: float

    def __post_init__(self) -> None:
        _check_learning_rate(self.lr)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad:
    """Adagrad with one accumulator a row: a += mean(g^2); w = w - lr / (sqrt(a) + eps) * g.

    The variant of FBGEMM and TorchRec (`EXACT_ROWWISE_ADAGRAD`): Adagrad (Duchi et al., 2011) with the
    squared gradient averaged over the row.

    Args:
        lr: learning rate, finite and at least 0.
        eps: added to the root, finite and above 0.
        initial_accumulator: the accumulator of a row never updated, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    lr: float
    eps: float = 1e-8
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check_learning_rate(self.lr)
        if not (math.isfinite(self.eps) and self.eps > 0.0):
            raise ValueError(f"eps: expected a finite number > 0, got {self.eps}")
        if not (math.isfinite(self.initial_accumulator) and self.initial_accumulator >= 0.0):
            raise ValueError(
                f"initial_accumulator: expected a finite number >= 0, got {self.initial_accumulator}"
            )


FusedOptimizer = SGD | RowWiseAdagrad
