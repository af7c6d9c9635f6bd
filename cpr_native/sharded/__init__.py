"""Embedding tables whose rows lie in other processes, as torch modules, and the manager of their job."""

from __future__ import annotations

from cpr_native.sharded.collection import ShardedEmbeddingBagCollection
from cpr_native.sharded.manager import ClusterManager
from cpr_native.sharded.optimizer import ShardedFusedOptimizer

__all__ = ["ClusterManager", "ShardedEmbeddingBagCollection", "ShardedFusedOptimizer"]
