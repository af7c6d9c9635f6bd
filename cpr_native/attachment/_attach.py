"""`attach`: checks a model and its optimizers and begins to track them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from cpr_native.attachment._lookups import ForwardHook
from cpr_native.attachment._tables import AttachedTable, find_tables
from cpr_native.attachment.attachment import Attachment
from cpr_native.config import EmbeddingBagConfig, Trackers
from cpr_native.modules._plan import EnginePlan
from cpr_native.modules._tables import trackers_of

# torch draws embeddings from N(0, 1); a range of the same variance describes them in a checkpoint.
_INIT_BOUND = math.sqrt(3.0)


def attach(
    model: nn.Module,
    *,
    trackers: Trackers | Mapping[str, Trackers] | None = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    skip: Collection[str] = (),
    seed: int = 0,
) -> Attachment:
    """Track every `nn.Embedding` and `nn.EmbeddingBag` of `model`, which keeps its modules, as they are.

    Increments and partial recovery then work for the model (`RecoveryManager(model, ...)`), trained by
    torch's own optimizers. Trackers cost 8 bytes a row and the SSU list. A save copies the rows it takes, and
    their state, while training waits, and holds the copy until it is written. Attach when the weights are
    where they stay and before `torch.compile`, whose graph breaks at each tracked module.

    Args:
        model: weights in CPU memory, contiguous, float32, float16, bfloat16 or float64 (all of them then).
            Tied weights are one table.
        trackers: of every table, or a mapping from table names (`Attachment.table_names`); others get
            `Trackers()`.
        optimizer: the torch optimizers that train the tables. Their state of a row is saved and restored
            with its weight, as one record; without them it stays with the dense state, and only whole jobs
            recover.
        skip: names of embedding modules to leave alone; the dense parameters include them.
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
    tables = find_tables(model, skip)
    plan = EnginePlan(
        tables=tuple(_config(table) for table in tables),
        trackers=trackers_of([table.name for table in tables], trackers),
        optimizer=None,
        seed=seed,
        external=True,
    )
    return Attachment(tables, plan, optimizers)


def attachments_of(model: nn.Module) -> list[Attachment]:
    """The attachments that track modules of `model` now: at most one, unless parts were attached alone."""
    owners = [ForwardHook.owner_of(module) for module in model.modules()]
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


def _optimizers(optimizer: Optimizer | Sequence[Optimizer] | None) -> tuple[Optimizer, ...]:
    given = (
        () if optimizer is None else (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    )
    for each in given:
        if not isinstance(each, Optimizer):
            raise TypeError(f"attach: optimizer: expected torch.optim.Optimizer, got {type(each).__name__}")
    return given
