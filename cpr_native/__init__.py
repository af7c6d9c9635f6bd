"""Fault-tolerant training of recommendation models: tables, trackers, snapshots, checkpoints, recovery.

Importing this package imports neither torch nor the rest of the package: every name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cpr_native import cuda
    from cpr_native.attachment import attach
    from cpr_native.config import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType, Trackers
    from cpr_native.conversion import convert
    from cpr_native.iteration_cost import IterationLoop
    from cpr_native.modules import (
        Embedding,
        EmbeddingBag,
        EmbeddingBagCollection,
        EmbeddingCollection,
        EmbeddingFusedOptimizer,
    )
    from cpr_native.optim import SGD, Adagrad, Adam, PartialRowWiseAdam, RowWiseAdagrad
    from cpr_native.overhead import ClosedLoop, Costs, Job
    from cpr_native.policy import Delta, Drift, Full, Mfu, Partial, Random, RoundRobin, Scar, Ssu
    from cpr_native.recovery import RecoveryManager, ResumableLoader
    from cpr_native.sharded import ClusterManager, ShardedEmbeddingBagCollection
    from cpr_native.shared import SharedMemory
    from cpr_native.store import CheckpointStore
    from cpr_native.train import fit

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "CheckpointStore",
    "ClosedLoop",
    "ClusterManager",
    "Costs",
    "DataType",
    "Delta",
    "Drift",
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "EmbeddingFusedOptimizer",
    "Full",
    "IterationLoop",
    "Job",
    "Mfu",
    "Partial",
    "PartialRowWiseAdam",
    "PoolingType",
    "Random",
    "RecoveryManager",
    "ResumableLoader",
    "RoundRobin",
    "RowWiseAdagrad",
    "Scar",
    "ShardedEmbeddingBagCollection",
    "SharedMemory",
    "Ssu",
    "Trackers",
    "attach",
    "convert",
    "cuda",
    "fit",
]

_HOMES = {
    "cpr_native.attachment": ("attach",),
    "cpr_native.config": ("DataType", "EmbeddingBagConfig", "EmbeddingConfig", "PoolingType", "Trackers"),
    "cpr_native.conversion": ("convert",),
    "cpr_native.iteration_cost": ("IterationLoop",),
    "cpr_native.modules": (
        "Embedding",
        "EmbeddingBag",
        "EmbeddingBagCollection",
        "EmbeddingCollection",
        "EmbeddingFusedOptimizer",
    ),
    "cpr_native.optim": ("SGD", "Adagrad", "Adam", "PartialRowWiseAdam", "RowWiseAdagrad"),
    "cpr_native.overhead": ("ClosedLoop", "Costs", "Job"),
    "cpr_native.policy": ("Delta", "Drift", "Full", "Mfu", "Partial", "Random", "RoundRobin", "Scar", "Ssu"),
    "cpr_native.recovery": ("RecoveryManager", "ResumableLoader"),
    "cpr_native.sharded": ("ClusterManager", "ShardedEmbeddingBagCollection"),
    "cpr_native.shared": ("SharedMemory",),
    "cpr_native.store": ("CheckpointStore",),
    "cpr_native.train": ("fit",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "cuda":  # a module, like torch.cuda
        return importlib.import_module("cpr_native.cuda")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
