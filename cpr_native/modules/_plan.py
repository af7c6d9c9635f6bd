"""What it takes to build the engine of a module, in a form that can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from cpr_native._native import Collection, TableSpec
from cpr_native.config import EmbeddingBagConfig, EmbeddingConfig, Trackers
from cpr_native.optim import SGD, Adagrad, Adam, FusedOptimizer, PartialRowWiseAdam, RowWiseAdagrad

DEFAULT_STAGING_BYTES = 256 * 2**20


def _check_optimizer(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, FusedOptimizer):
        names = ", ".join(kind.__name__ for kind in get_args(FusedOptimizer))
        raise TypeError(f"optimizer: expected one of {names} or None, got {type(optimizer).__name__}")


def native_scalars(optimizer: FusedOptimizer) -> dict[str, float]:
    """The hyperparameters of `optimizer` under the names of the engine's properties."""
    scalars = {"learning_rate": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if not isinstance(optimizer, SGD):
        scalars["eps"] = optimizer.eps
    if isinstance(optimizer, Adam | PartialRowWiseAdam):
        scalars["beta1"], scalars["beta2"] = optimizer.betas
    return scalars


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """Tables, trackers (one per table), optimizer and sizes of one engine; None is torch's own optimizer.

    `external`: the weights are the caller's memory. `scale_grad_by_freq`: a row's gradient is divided by how
    often the batch names it, as in torch.
    """

    tables: tuple[EmbeddingBagConfig | EmbeddingConfig, ...]
    trackers: tuple[Trackers, ...]
    optimizer: FusedOptimizer | None
    seed: int = 0
    max_staging_bytes: int = DEFAULT_STAGING_BYTES
    external: bool = False
    scale_grad_by_freq: bool = False

    def __post_init__(self) -> None:
        _check_optimizer(self.optimizer)

    @property
    def features(self) -> tuple[int, ...]:
        """The table of every feature, in the order of the output."""
        return tuple(table for table, config in enumerate(self.tables) for _ in config.feature_names)

    def build(self) -> Collection:
        """Make the engine, with every row at its initial weight and state."""
        name, scalars = "none", {"learning_rate": 0.0}
        if self.optimizer is not None:
            name, scalars = self.optimizer.name, native_scalars(self.optimizer)
        if isinstance(self.optimizer, RowWiseAdagrad | Adagrad):
            scalars["initial_state"] = self.optimizer.initial_accumulator
        specs = [
            self._spec(config, tracked) for config, tracked in zip(self.tables, self.trackers, strict=True)
        ]
        return Collection(
            specs,
            self.features,
            optimizer=name,
            **scalars,
            seed=self.seed,
            max_staging_bytes=self.max_staging_bytes,
        )

    def _spec(self, config: EmbeddingBagConfig | EmbeddingConfig, trackers: Trackers) -> TableSpec:
        low, high = config.init_range
        return TableSpec(
            name=config.name,
            num_embeddings=config.num_embeddings,
            embedding_dim=config.embedding_dim,
            pooling=config.pooling.value.lower(),
            init_min=low,
            init_max=high,
            dirty=trackers.dirty,
            mfu=trackers.mfu,
            ssu=trackers.ssu,
            drift=trackers.drift,
            ssu_fraction=trackers.ssu_fraction,
            ssu_period=trackers.ssu_period,
            dtype=config.data_type.dtype,
            external=self.external,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
