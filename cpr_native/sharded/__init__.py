"""Embedding tables whose rows lie in other processes, as torch modules."""

from __future__ import annotations

from cpr_native.sharded.collection import ShardedEmbeddingBagCollection
from cpr_native.sharded.optimizer import ShardedFusedOptimizer

__all__ = ["ShardedEmbeddingBagCollection", "ShardedFusedOptimizer"]
