"""Embedding tables as torch modules over the native engine."""

from __future__ import annotations

from cpr_native.modules._base import EngineModule
from cpr_native.modules._call import Request
from cpr_native.modules._threads import share_torch_threads
from cpr_native.modules.collection import EmbeddingBagCollection
from cpr_native.modules.embedding import Embedding
from cpr_native.modules.embedding_bag import EmbeddingBag
from cpr_native.modules.embedding_collection import EmbeddingCollection
from cpr_native.modules.optimizer import EmbeddingFusedOptimizer

share_torch_threads()

__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "EmbeddingFusedOptimizer",
    "EngineModule",
    "Request",
]
