"""`convert`: checks everything and builds every engine first, then changes the modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

from cpr_native.attachment import attachments_of
from cpr_native.config import Trackers
from cpr_native.conversion._build import Settings, build
from cpr_native.conversion._sharing import check_sharing
from cpr_native.conversion._sites import Site, find_sites, title
from cpr_native.conversion._swap import become, check_swap
from cpr_native.modules import EngineModule
from cpr_native.optim import FusedOptimizer

M = TypeVar("M", bound=nn.Module)


def convert(
    model: M,
    *,
    optimizer: FusedOptimizer | None = None,
    trackers: Trackers | Mapping[str, Trackers] | None = None,
    skip: Iterable[str] = (),
    rank_local: bool = False,
) -> M:
    """Make every embedding module of `model` one of this package, in place, weights and all.

    `torch.nn.EmbeddingBag` and `torch.nn.Embedding` become `EmbeddingBag` and `Embedding`; TorchRec's
    unsharded `EmbeddingBagCollection` and `EmbeddingCollection` become those of this package. Every module
    stays the same object (its class changes), every weight the same Parameter in the same memory. So names,
    `state_dict` keys, hooks, the training flag, `requires_grad`, attributes of the module and references to
    it stay, and an optimizer made before still has the parameters. All rows are dirty afterwards: no
    checkpoint has them yet. Modules of this package are left as they are.

    A Parameter that several modules hold (tied weights) works with `optimizer=None`: gradients add up as in
    torch, and each engine marks the rows that the torch optimizer changes. With a fused optimizer it is
    refused, since what reaches the weight through the other module would be lost.

    Convert before `torch.compile`, sharding and data-parallel wrappers.

    Args:
        model: any module, an embedding module itself included; weights in CPU memory or on a GPU.
        optimizer: fused into backward, for all converted modules; None: gradients for torch's optimizers, in
            the layout (sparse or dense) they had.
        trackers: of every table, or a mapping from names of modules (as in `named_modules()`; a table of a
            collection is `<collection>.embedding_bags.<table>`); others get `Trackers()`.
        skip: names of modules to leave as they are, with all that is in them.
        rank_local: the tables of each rank of `torch.distributed` may differ.

    Returns:
        `model`.

    Raises:
        ValueError: a subclass of an embedding module, a sharded, scripted or otherwise special one (say which
            to `skip`); a weight neither in CPU memory nor on a GPU, not contiguous, tied as said above or
            sharing memory with another tensor of the model; a name that isn't there; nothing to convert; an
            attached model.
        TypeError: a weight's dtype or an optimizer that isn't supported.
        RuntimeError: a GPU that this build can't use.
        Whatever is raised names the module, and no module has been changed.
    """
    if attachments_of(model):
        raise ValueError("convert: the model is attached, which tracks torch's modules: detach() first")
    sites = find_sites(model, skip)
    check_sharing(model, sites, fused=optimizer is not None)
    settings = Settings(optimizer, _by_name(trackers, sites), rank_local)
    made = [_built(site, settings) for site in sites]
    for site, module in zip(sites, made, strict=True):
        become(site.module, module)
    return model


def _by_name(trackers: Trackers | Mapping[str, Trackers] | None, sites: list[Site]) -> Mapping[str, Trackers]:
    known = {name for site in sites for name in (site.name, *site.tables)}
    if trackers is None or isinstance(trackers, Trackers):
        return dict.fromkeys(known, trackers or Trackers())
    unknown = sorted(set(trackers) - known)
    if unknown:
        raise ValueError(f"trackers: no module {', '.join(unknown)}, expected some of {sorted(known)}")
    return trackers


def _built(site: Site, settings: Settings) -> EngineModule:
    try:
        made = build(site, settings)
        check_swap(site.module, made)
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(f"{title(site.name)}: {error}") from error
    return made
