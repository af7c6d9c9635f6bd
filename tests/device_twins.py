"""Modules with their tables on a device beside the same on the CPU, which decide what is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpr_native import (
    SGD,
    Adagrad,
    Adam,
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PartialRowWiseAdam,
    PoolingType,
    RowWiseAdagrad,
    Trackers,
)
from cpr_native.device import Place
from cpr_native.modules import EngineModule
from cpr_native.optim import FusedOptimizer

FUSED: list[FusedOptimizer] = [
    SGD(lr=0.1, weight_decay=0.01),
    RowWiseAdagrad(lr=0.1, eps=1e-6, initial_accumulator=0.25),
    Adagrad(lr=0.1, initial_accumulator=0.5),
    Adam(lr=0.1, betas=(0.8, 0.95)),
    PartialRowWiseAdam(lr=0.1, weight_decay=0.02),
]
DRIFT = Trackers(drift=True, ssu_fraction=0.5)
STAGING = 1 << 20
BATCH = 6


@dataclass(frozen=True)
class Given:
    """What one step looks up, and the gradient of its output; in CPU memory."""

    ids: Tensor
    offsets: Tensor
    weights: Tensor
    grad: Tensor


@dataclass(kw_only=True)
class Shape:
    """The tables of a collection: `rows` and `dims` of each; the first has two features."""

    rows: tuple[int, ...] = (40, 7)
    dims: tuple[int, ...] = (8, 5)
    kind: DataType = DataType.FP32
    pooling: PoolingType = PoolingType.SUM
    names: tuple[str, ...] = ("a", "b")
    features: list[int] = field(default_factory=lambda: [0, 0, 1])

    def configs(self) -> list[EmbeddingBagConfig]:
        return [EmbeddingBagConfig(**options, pooling=self.pooling) for options in self._options()]

    def unpooled(self) -> list[EmbeddingConfig]:
        return [EmbeddingConfig(**options) for options in self._options()]

    def _options(self) -> Iterator[dict[str, Any]]:
        for table, name in enumerate(self.names):
            used = [f"f{feature}" for feature, of in enumerate(self.features) if of == table]
            yield {
                "name": name,
                "num_embeddings": self.rows[table],
                "embedding_dim": self.dims[table],
                "feature_names": used,
                "data_type": self.kind,
            }

    def steps(self, count: int, *, seed: int = 0, longest: int = 40) -> Iterator[Given]:
        """Bags of up to `longest` ids, some empty; rows named more than 32 times in a step."""
        generator = torch.Generator().manual_seed(seed)
        dim = sum(self.dims[table] for table in self.features)
        for _ in range(count):
            lengths = torch.randint(-5, longest, (len(self.features), BATCH), generator=generator).clamp(
                min=0
            )
            ids = [
                torch.randint(0, self.rows[table], (int(of.sum()),), generator=generator)
                for table, of in zip(self.features, lengths, strict=True)
            ]
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.reshape(-1).cumsum(0)])
            weights = torch.randn(int(offsets[-1]), generator=generator)
            yield Given(torch.cat(ids), offsets, weights, torch.randn(BATCH, dim, generator=generator))


def on(place: Place, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies of tensors on the device."""
    return tuple(tensor.to(place.torch_device, copy=True) for tensor in tensors)


def bits(tensor: Tensor) -> Tensor:
    """The bits of a tensor, in CPU memory, so that equal means equal, NaN and zeros too."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().cpu().contiguous().view(kinds[tensor.element_size()])


def assert_bits(left: Tensor, right: Tensor) -> None:
    assert left.dtype == right.dtype
    assert torch.equal(bits(left), bits(right))


def assert_same(module: EngineModule, expected: EngineModule) -> None:
    """Compare weights, state, trackers and scalars of two modules, bit for bit."""
    module.synchronize()
    engine, other = module.engine, expected.engine
    for table, (weight, twin) in enumerate(zip(module._weights(), expected._weights(), strict=True)):
        assert_bits(weight, twin)
        for read in ("state", "trackers", "sampled_rows"):
            np.testing.assert_array_equal(getattr(engine, read)(table), getattr(other, read)(table), read)
        if module.plan.trackers[table].drift:
            np.testing.assert_array_equal(engine.drift(table), other.drift(table))
    assert module.optimizer_scalars() == expected.optimizer_scalars()


def twins(
    place: Place, shape: Shape, optimizer: FusedOptimizer | None, **options: Any
) -> tuple[EmbeddingBagCollection, EmbeddingBagCollection]:
    """A collection on the device and the same on the CPU, with the same rows; `options` for both."""
    options = {"trackers": DRIFT if optimizer else None, "max_staging_bytes": STAGING, **options}
    device = {key: options.pop(key) for key in ("host_memory",) if key in options}
    return (
        EmbeddingBagCollection(shape.configs(), optimizer=optimizer, device=place, **device, **options),
        EmbeddingBagCollection(shape.configs(), optimizer=optimizer, **options),
    )


def train(module: EmbeddingBagCollection, given: Given, *, weighted: bool = False) -> Tensor:
    """One step with everything on the module's device; returns the output."""
    ids, offsets, weights, grad = (x.to(module.device) for x in vars(given).values())
    out = module(ids, offsets, weights if weighted else None)
    out.backward(grad.to(out.dtype))
    kept: Tensor = out.detach()
    return kept
