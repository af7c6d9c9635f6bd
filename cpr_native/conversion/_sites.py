"""Which modules of a model are converted, and which are refused."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cpr_native.modules import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    EngineModule,
)

_TORCHREC = "torchrec.modules.embedding_modules"
# By the module that defines them: what looks like an embedding module and isn't one that is converted.
_SPECIAL = {
    _TORCHREC: ("EmbeddingBagCollectionInterface", "EmbeddingCollectionInterface"),
    "torchrec.distributed.types": ("ShardedModule",),
}


@dataclass(frozen=True)
class Site:
    """A module to convert to `target`; `tables`: the torch module of each table by its path in the model."""

    name: str
    module: Any
    target: type[EngineModule]
    tables: Mapping[str, Any]


def join(*names: str) -> str:
    """A path in a model; "" is the model itself."""
    return ".".join(name for name in names if name)


def title(name: str) -> str:
    """How messages name a module."""
    return f"module {name!r}" if name else "the model"


def find_sites(model: nn.Module, skip: Iterable[str]) -> list[Site]:
    """Every module to convert, once; ValueError for one that is refused, or when there is none."""
    seen: set[nn.Module] = set()
    for name in skip:
        try:
            seen.add(model.get_submodule(name))
        except AttributeError:
            raise ValueError(f"skip: the model has no module {name!r}") from None
    sites = list(_walk("", model, seen))
    if not sites and not any(isinstance(module, EngineModule) for module in model.modules()):
        raise ValueError("expected a model with an embedding module to convert, found none")
    return sites


def _walk(name: str, module: nn.Module, seen: set[nn.Module]) -> Iterator[Site]:
    if module in seen or isinstance(module, EngineModule):
        return
    seen.add(module)
    site = _site_of(name, module)
    if site is not None:
        yield site
        return
    for child_name, child in module.named_children():
        yield from _walk(join(name, child_name), child, seen)


def _site_of(name: str, module: Any) -> Site | None:
    kind = type(module)
    if kind is nn.EmbeddingBag:
        return Site(name, module, EmbeddingBag, {name: module})
    if kind is nn.Embedding:
        return Site(name, module, Embedding, {name: module})
    home = sys.modules.get(_TORCHREC)
    if home is not None and kind is home.EmbeddingBagCollection:
        tables = _tables_of(name, "embedding_bags", module, nn.EmbeddingBag)
        return Site(name, module, EmbeddingBagCollection, tables)
    if home is not None and kind is home.EmbeddingCollection:
        return Site(name, module, EmbeddingCollection, _tables_of(name, "embeddings", module, nn.Embedding))
    _refuse_special(name, module)
    return None


def _tables_of(name: str, holder: str, module: Any, kind: type[nn.Module]) -> dict[str, Any]:
    tables = {join(name, holder, key): table for key, table in getattr(module, holder).items()}
    for path, table in tables.items():
        hooks = [key for key, value in table.__dict__.items() if key.endswith("_hooks") and value]
        plain = type(table) is kind and "forward" not in table.__dict__ and not hooks
        if (
            not plain
            or table.padding_idx is not None
            or table.max_norm is not None
            or table.scale_grad_by_freq
        ):
            raise ValueError(
                f"{title(path)}: expected torch.nn.{kind.__name__} as TorchRec makes it, without hooks, "
                "padding_idx, max_norm and scale_grad_by_freq, which a collection doesn't have for one table"
            )
    return tables


def _refuse_special(name: str, module: Any) -> None:
    refused: tuple[type, ...] = (nn.EmbeddingBag, nn.Embedding)
    for home, kinds in _SPECIAL.items():
        if home in sys.modules:
            refused += tuple(getattr(sys.modules[home], kind) for kind in kinds)
    got = f"{type(module).__module__}.{type(module).__qualname__}"
    if isinstance(module, torch.jit.ScriptModule):
        got = f"scripted {getattr(module, 'original_name', '')}"
    if isinstance(module, refused) or got in ("scripted EmbeddingBag", "scripted Embedding"):
        raise ValueError(
            f"{title(name)}: expected torch's EmbeddingBag or Embedding or TorchRec's unsharded collections, "
            f"got {got}, which may compute something else; skip=[{name!r}] leaves it as it is"
        )
