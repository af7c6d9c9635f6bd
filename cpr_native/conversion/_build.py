"""Builds, beside a module of torch or TorchRec, the one of this package that takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cpr_native.config import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType, Trackers
from cpr_native.conversion._sites import Site
from cpr_native.modules import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    EngineModule,
)
from cpr_native.optim import FusedOptimizer


@dataclass(frozen=True)
class Settings:
    """Of one conversion; `trackers` by name of module or table."""

    optimizer: FusedOptimizer | None
    trackers: Mapping[str, Trackers]
    rank_local: bool

    def of(self, *names: str) -> Trackers:
        """The trackers of the first of `names` that has some of its own."""
        return next((self.trackers[name] for name in names if name in self.trackers), Trackers())


def build(site: Site, settings: Settings) -> EngineModule:
    """A module of `site.target` around the weights of the site; raises as its constructor does."""
    return _BUILDERS[site.target](site, settings)


def _embedding_bag(site: Site, settings: Settings) -> EngineModule:
    module = site.module
    return EmbeddingBag(
        module.num_embeddings,
        module.embedding_dim,
        mode=module.mode,
        include_last_offset=module.include_last_offset,
        **_drop_in_options(site, settings),
    )


def _embedding(site: Site, settings: Settings) -> EngineModule:
    module = site.module
    return Embedding(module.num_embeddings, module.embedding_dim, **_drop_in_options(site, settings))


def _drop_in_options(site: Site, settings: Settings) -> dict[str, Any]:
    module = site.module
    return {
        "_weight": module.weight,
        "max_norm": module.max_norm,
        "norm_type": module.norm_type,
        "padding_idx": module.padding_idx,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        "sparse": module.sparse,
        "optimizer": settings.optimizer,
        "trackers": settings.of(site.name),
        "rank_local": settings.rank_local,
    }


def _bag_collection(site: Site, settings: Settings) -> EngineModule:
    tables = [
        EmbeddingBagConfig(**_fields(config, table), pooling=PoolingType(table.mode.upper()))
        for config, table in zip(site.module.embedding_bag_configs(), site.tables.values(), strict=True)
    ]
    names = [config.name for config in tables]
    return EmbeddingBagCollection(
        tables, is_weighted=site.module.is_weighted(), **_collection_options(site, names, settings)
    )


def _collection(site: Site, settings: Settings) -> EngineModule:
    tables = [
        EmbeddingConfig(**_fields(config, table))
        for config, table in zip(site.module.embedding_configs(), site.tables.values(), strict=True)
    ]
    names = [config.name for config in tables]
    return EmbeddingCollection(
        tables, need_indices=site.module.need_indices(), **_collection_options(site, names, settings)
    )


def _fields(config: Any, table: Any) -> dict[str, Any]:
    """What the settings of a table have in TorchRec and here; its dtype is the weight's."""
    dtype = str(table.weight.dtype).removeprefix("torch.")
    known = {kind.dtype: kind for kind in DataType}
    if dtype not in known:
        raise TypeError(f"table {config.name!r}: weight: expected one of {', '.join(known)}, got {dtype}")
    return {
        "name": config.name,
        "num_embeddings": config.num_embeddings,
        "embedding_dim": config.embedding_dim,
        "feature_names": config.feature_names,
        "data_type": known[dtype],
        "weight_init_min": config.get_weight_init_min(),
        "weight_init_max": config.get_weight_init_max(),
    }


def _collection_options(site: Site, names: list[str], settings: Settings) -> dict[str, Any]:
    paths = dict(zip(names, site.tables, strict=True))
    layouts = {table.sparse for table in site.tables.values()}
    if len(layouts) > 1:
        raise ValueError("sparse: expected one value for all tables of a collection, got both")
    return {
        "optimizer": settings.optimizer,
        "sparse": layouts.pop(),
        "trackers": {name: settings.of(path, site.name) for name, path in paths.items()},
        "rank_local": settings.rank_local,
        "_weights": [table.weight for table in site.tables.values()],
    }


_BUILDERS: dict[type[EngineModule], Callable[[Site, Settings], EngineModule]] = {
    EmbeddingBag: _embedding_bag,
    Embedding: _embedding,
    EmbeddingBagCollection: _bag_collection,
    EmbeddingCollection: _collection,
}
