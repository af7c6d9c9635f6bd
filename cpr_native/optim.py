"""Settings of the fused optimizers, which update rows inside the backward pass. No torch here.

In the formulas g is the summed gradient of a row in the batch plus `weight_decay * w` (L2, as torch's own
optimizers without decoupled decay). Rows outside the batch are left alone: neither their weights nor their
state decay, as in FBGEMM and `torch.optim.SparseAdam`. docs/numerics.md has the order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "FusedOptimizer",
    "PartialRowWiseAdam",
    "RowWiseAdagrad",
    "native_scalars",
]


# The engine computes in float32: what would round to infinity, 0 or 1 there is out of range here.
_LARGEST = (2.0 - 2.0**-23) * 2.0**127
_SMALLEST = 2.0**-149
_BELOW_1 = 1.0 - 2.0**-24


def _check_at_least_0(name: str, value: float) -> None:
    if not 0.0 <= value <= _LARGEST:
        raise ValueError(f"{name}: expected a finite number >= 0, got {value}")


def _check_above_0(name: str, value: float) -> None:
    if not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{name}: expected a finite number > 0, got {value}")


def _checked_betas(betas: tuple[float, float]) -> tuple[float, float]:
    pair = tuple(betas)
    if len(pair) != 2 or not all(0.0 <= beta <= _BELOW_1 for beta in pair):
        raise ValueError(f"betas: expected two numbers in [0, 1), got {betas}")
    return pair


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent: w -= lr * g for every row of the batch.

    `torch.optim.SGD` without momentum; FBGEMM's `EXACT_SGD`.

    Args:
        lr: learning rate, finite and at least 0.
        weight_decay: L2 factor, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    lr: float
    weight_decay: float = 0.0

    name: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        _check_at_least_0("lr", self.lr)
        _check_at_least_0("weight_decay", self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class _AdagradSettings:
    lr: float
    eps: float
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_at_least_0("lr", self.lr)
        _check_above_0("eps", self.eps)
        _check_at_least_0("initial_accumulator", self.initial_accumulator)
        _check_at_least_0("weight_decay", self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(_AdagradSettings):
    """Adagrad with one accumulator a row: a += mean(g^2); w -= lr / (sqrt(a) + eps) * g.

    The variant of FBGEMM and TorchRec (`EXACT_ROWWISE_ADAGRAD`): Adagrad (Duchi et al., 2011) with the
    squared gradient averaged over the row. State: 4 bytes a row.

    Args:
        lr: learning rate, finite and at least 0.
        eps: added to the root, finite and above 0.
        initial_accumulator: the accumulator of a row never updated, finite and at least 0.
        weight_decay: L2 factor, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    eps: float = 1e-8

    name: ClassVar[str] = "row_wise_adagrad"


@dataclass(frozen=True, kw_only=True)
class Adagrad(_AdagradSettings):
    """Adagrad (Duchi et al., 2011) with one accumulator an element: a += g^2; w -= lr * g / (sqrt(a) + eps).

    `torch.optim.Adagrad` without `lr_decay`; FBGEMM's `EXACT_ADAGRAD`. State: 4 * dim bytes a row.

    Args:
        lr: learning rate, finite and at least 0.
        eps: added to the root, finite and above 0.
        initial_accumulator: the accumulators of a row never updated, finite and at least 0
            (`initial_accumulator_value` in torch).
        weight_decay: L2 factor, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    eps: float = 1e-10

    name: ClassVar[str] = "adagrad"


@dataclass(frozen=True, kw_only=True)
class _AdamSettings:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_at_least_0("lr", self.lr)
        object.__setattr__(self, "betas", _checked_betas(self.betas))
        _check_above_0("eps", self.eps)
        _check_at_least_0("weight_decay", self.weight_decay)


@dataclass(frozen=True, kw_only=True)
class Adam(_AdamSettings):
    """Lazy Adam (Kingma & Ba, 2015): only the rows of the batch move, t counts the steps of the module.

    m = b1 * m + (1 - b1) * g; v = b2 * v + (1 - b2) * g^2;
    w -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
    `torch.optim.Adam` where every batch has all rows, and FBGEMM's `ADAM`; `torch.optim.SparseAdam` but for
    its eps, which that adds before the correction of v. State: 8 * dim bytes a row.

    Args:
        lr: learning rate, finite and at least 0.
        betas: decay of both moments, each in [0, 1).
        eps: added to the root, finite and above 0.
        weight_decay: L2 factor, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    name: ClassVar[str] = "adam"


@dataclass(frozen=True, kw_only=True)
class PartialRowWiseAdam(_AdamSettings):
    """Lazy Adam with one second moment a row, of mean(g^2); otherwise as `Adam`.

    FBGEMM's and TorchRec's `PARTIAL_ROWWISE_ADAM`. State: 4 * dim + 4 bytes a row.

    Args:
        lr: learning rate, finite and at least 0.
        betas: decay of both moments, each in [0, 1).
        eps: added to the root, finite and above 0.
        weight_decay: L2 factor, finite and at least 0.

    Raises:
        ValueError: a number out of its range.
    """

    name: ClassVar[str] = "partial_row_wise_adam"


FusedOptimizer = SGD | RowWiseAdagrad | Adagrad | Adam | PartialRowWiseAdam


def native_scalars(optimizer: FusedOptimizer) -> dict[str, float]:
    """The hyperparameters of `optimizer` under the names of the engine's properties."""
    scalars = {"learning_rate": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if not isinstance(optimizer, SGD):
        scalars["eps"] = optimizer.eps
    if isinstance(optimizer, Adam | PartialRowWiseAdam):
        scalars["beta1"], scalars["beta2"] = optimizer.betas
    return scalars
