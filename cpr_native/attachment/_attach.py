"""`attach`: checks a model and its optimizers and begins to track them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment._owner import owner_of
from cpr_native.attachment._tables import AttachedTable, Blocks, find_tables
from cpr_native.attachment.attachment import Attachment
from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.modules._plan import EnginePlan
from cpr_native.modules._tables import trackers_of

# torch draws embeddings from N(0, 1); a range of the same variance describes them in a checkpoint.
_INIT_BOUND = math.sqrt(3.0)
_DIRTY = Trackers(mfu=False, ssu=False)


def attach(
    model: nn.Module,
    *,
    trackers: Trackers | Mapping[str, Trackers] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    blocks: Blocks | None = None,
    skip: Collection[str] = (),
    seed: int = 0,
) -> Attachment:
    """Track the embedding modules of `model`, or all its parameters, where they are; it keeps its modules.

    Increments and partial recovery then work for the model (`RecoveryManager(model, ...)`), trained by
    torch's own optimizers. Trackers cost 8 bytes a row and the SSU list. A save copies the rows it takes, and
    their state, while training waits, and holds the copy until it is written. Attach when the weights are
    where they stay and before `torch.compile`, whose graph breaks at each tracked embedding module.

    Args:
        model: weights in CPU memory, contiguous, float32, float16, bfloat16 or float64 (all of them then).
            Tied weights are one table.
        trackers: of every table of an embedding module, or a mapping from the names of such tables
            (`Attachment.table_names`); others get `Trackers()`. Tables of other parameters have no lookups
            to count: they track what is dirty.
        optimizer: the torch optimizers that train the tables. Their state of a row is saved and restored
            with its weight, as one record; without them it stays with the dense state, and only whole jobs
            recover. An empty sequence says that none does (the weights are written under `no_grad`). An
            optimizer of a class that this package doesn't know must have made its state: attach after its
            first step, or after loading it.
        blocks: None tracks `nn.Embedding` and `nn.EmbeddingBag` alone. Otherwise every parameter is a table
            of blocks, frozen ones too, which stay clean. Embedding weights have their rows as blocks. Any
            other has the rows of its first dimension ("rows"; with fewer than two dimensions it is one
            block), is one block ("tensors"), or is cut into that many consecutive elements a block (an int;
            a short last one is a table of its own, `<name>-tail`). What has no elements stays dense.
        skip: names of embedding modules to leave alone; with `blocks` of any modules and parameters. The
            dense state includes them.
        seed: of the trackers' choices.

    Returns:
        The attachment. The model keeps it until `detach()`; it doesn't keep the model.

    Raises:
        ValueError: nothing to track, attached already, a module or weight that can't be tracked (the message
            has the way out), a weight in two optimizers, trackers for no table.
        TypeError: an argument or dtype. The model is unchanged in any case.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach: model: expected a torch.nn.Module, got {type(model).__name__}")
    if attachments_of(model):
        raise ValueError("attach: the model is attached already: detach() first")
    optimizers = _optimizers(optimizer)
    tables = find_tables(model, skip, _checked(blocks))
    named = [table.name for table in tables if table.looked_up]
    counted = dict(zip(named, trackers_of(named, trackers), strict=True))
    plan = EnginePlan(
        tables=tuple(_config(table) for table in tables),
        trackers=tuple(counted.get(table.name, _DIRTY) for table in tables),
        optimizer=None,
        seed=seed,
        external=True,
    )
    return Attachment(tables, plan, optimizers)


def attachments_of(model: nn.Module) -> list[Attachment]:
    """The attachments that track modules of `model` now: at most one, unless parts were attached alone."""
    owners = [owner_of(module) for module in model.modules()]
    return [owner for owner in dict.fromkeys(owners) if isinstance(owner, Attachment)]


def _config(table: AttachedTable) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=(table.name,),
        data_type=table.data_type,
        weight_init_min=-_INIT_BOUND,
        weight_init_max=_INIT_BOUND,
    )


def _checked(blocks: Blocks | None) -> Blocks | None:
    if isinstance(blocks, bool) or not (blocks in (None, "rows", "tensors") or isinstance(blocks, int)):
        raise TypeError(f"attach: blocks: expected None, 'rows', 'tensors' or an int, got {blocks!r}")
    if isinstance(blocks, int) and blocks < 1:
        raise ValueError(f"attach: blocks: expected at least 1 element a block, got {blocks}")
    return blocks


def _optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> tuple[Optimizer, ...] | None:
    if optimizer is None:
        return None
    given = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    for each in given:
        if not isinstance(each, Optimizer):
            raise TypeError(f"attach: optimizer: expected torch.optim.Optimizer, got {type(each).__name__}")
    return given
