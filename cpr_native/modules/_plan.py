"""What it takes to build the engine of a module, in a form that can be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch

from cpr_native._native import Collection, TableSpec
from cpr_native._tensor import describe
from cpr_native.config import EmbeddingBagConfig, EmbeddingConfig, Trackers
from cpr_native.device.engine import DeviceEngine
from cpr_native.device.place import Place
from cpr_native.optim import Adagrad, FusedOptimizer, RowWiseAdagrad, native_scalars

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_native.shared import SharedMemory

Engine = Collection | DeviceEngine

DEFAULT_STAGING_BYTES = 256 * 2**20


def _check_optimizer(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, FusedOptimizer):
        names = ", ".join(kind.__name__ for kind in get_args(FusedOptimizer))
        raise TypeError(f"optimizer: expected one of {names} or None, got {type(optimizer).__name__}")


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """Tables, trackers (one per table), optimizer and sizes of one engine; None is torch's own optimizer.

    `external`: the weights are the caller's memory. `scale_grad_by_freq`: a row's gradient is divided by how
    often the batch names it, as in torch. `place`: the device of the tables, None: the CPU. `host_memory`:
    rows and state lie in memory of the host nevertheless, which the device reads and writes.
    """

    tables: tuple[EmbeddingBagConfig | EmbeddingConfig, ...]
    trackers: tuple[Trackers, ...]
    optimizer: FusedOptimizer | None
    seed: int = 0
    max_staging_bytes: int = DEFAULT_STAGING_BYTES
    external: bool = False
    scale_grad_by_freq: bool = False
    place: Place | None = None
    host_memory: bool = False

    def __post_init__(self) -> None:
        _check_optimizer(self.optimizer)

    @property
    def features(self) -> tuple[int, ...]:
        """The table of every feature, in the order of the output."""
        return tuple(table for table, config in enumerate(self.tables) for _ in config.feature_names)

    def layout(self) -> list[dict[str, Any]]:
        """What the engine's memory looks like, table by table, as JSON values."""
        optimizer = self.optimizer
        shared: dict[str, Any] = {
            "optimizer": "none" if optimizer is None else optimizer.name,
            "initial_state": getattr(optimizer, "initial_accumulator", 0.0),
            "seed": self.seed,
        }
        return [
            {
                "name": config.name,
                "rows": config.num_embeddings,
                "dim": config.embedding_dim,
                "dtype": config.data_type.dtype,
                "init_range": list(config.init_range),
                "trackers": asdict(tracked),
                **shared,
            }
            for config, tracked in zip(self.tables, self.trackers, strict=True)
        ]

    def build(self, memory: SharedMemory | None = None, weights: Sequence[Tensor] | None = None) -> Engine:
        """Make the engine, with every row at its initial weight and state.

        `memory`: what its rows lie in; those that an earlier process left there are as they were. `weights`:
        the rows of each table, used as they are; they are dirty then. Raises ValueError for shared memory
        without a fused optimizer, with the caller's weights or on a device, and what `SharedMemory.claim`
        raises.
        """
        if self.place is None:
            collection = self.collection(memory)
            for table, weight in enumerate(weights or ()):
                collection.bind_weight(table, describe(weight), weight)
            return collection
        if memory is not None:
            raise ValueError("shared memory: expected tables on the CPU, got some on a device")
        # Parameters are made of its memory.
        with torch.inference_mode(False):
            return DeviceEngine(
                self._specs(),
                self.features,
                place=self.place,
                **self._settings(),
                max_staging_bytes=self.max_staging_bytes,
                weights=weights,
                host_memory=self.host_memory,
            )

    def collection(self, memory: SharedMemory | None = None) -> Collection:
        """`build` of tables on the CPU."""
        if memory is not None and (self.optimizer is None or self.external):
            raise ValueError(
                "shared memory: expected tables with a fused optimizer and memory of their own, got "
                f"optimizer={self.optimizer}: what torch's optimizers write, no step marker has"
            )
        return Collection(
            self._specs(),
            self.features,
            **self._settings(),
            max_staging_bytes=self.max_staging_bytes,
            region=None if memory is None else memory.claim(self.layout()),
        )

    def _settings(self) -> dict[str, Any]:
        name, scalars = "none", {"learning_rate": 0.0}
        if self.optimizer is not None:
            name, scalars = self.optimizer.name, native_scalars(self.optimizer)
        if isinstance(self.optimizer, RowWiseAdagrad | Adagrad):
            scalars["initial_state"] = self.optimizer.initial_accumulator
        return {"optimizer": name, **scalars, "seed": self.seed}

    def _specs(self) -> list[TableSpec]:
        return [
            self._spec(config, tracked) for config, tracked in zip(self.tables, self.trackers, strict=True)
        ]

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


def is_attached(engine: Engine) -> bool:
    """Whether the rows are those that an earlier process left in shared memory."""
    return engine.region is not None and engine.region.attached
