"""What an attachment does around each step of a torch optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from cpr_native._tensor import describe
from cpr_native.attachment._tables import AttachedTable
from cpr_native.modules import Request
from cpr_native.modules._watch import Update, group_of, mark_updates

if TYPE_CHECKING:
    from cpr_native.attachment.attachment import Attachment


def weights_of(attachment: Attachment) -> list[tuple[int, Tensor]]:
    """The weights that are there, with the numbers of their tables."""
    weights = ((index, table.weight()) for index, table in enumerate(attachment._tables))
    return [(index, weight) for index, weight in weights if weight is not None]


def step_begins(attachment: Attachment, optimizer: Optimizer) -> None:
    """Mark the tables whose state was replaced since the last step."""
    for index, state in enumerate(attachment._states):
        if state.of(optimizer) and state.replaced():
            attachment.engine.mark_dirty(index)


def step_ended(attachment: Attachment, optimizer: Optimizer, updates: Sequence[Update]) -> None:
    """Mark the rows that a step changed and count the lookups whose gradient it used."""
    engine = attachment.engine
    tables = attachment._tables
    parts = [u if u.grad is None else u._replace(grad=tables[u.table].gradient(u.grad)) for u in updates]
    mark_updates(attachment, optimizer, parts)
    ids: list[Tensor] = []
    lengths = [0] * len(attachment._tables)
    for table, _, _ in updates:
        state = attachment._states[table]
        state.stepped(optimizer)
        if state.replaced(by_step=True):
            engine.mark_dirty(table)
        taken = attachment._lookups[table].take()
        if taken is not None:
            engine.track(table, describe(taken))
            ids.append(taken)
            lengths[table] = len(taken)
    if not ids:
        return
    engine.step += 1  # the sampled accesses of the next step are others
    if attachment._observer is not None:
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        attachment._observer(Request(torch.cat(ids), offsets, 1), ())()


def holder_of(table: AttachedTable, optimizers: Sequence[Optimizer]) -> Optimizer | None:
    """The optimizer that trains a table's weight; raises ValueError for several."""
    weight = table.synced_weight()
    holders = [optimizer for optimizer in optimizers if group_of(optimizer, weight) is not None]
    if len(holders) > 1:
        raise ValueError(
            f"attach: table {table.name!r}: its weight is in {len(holders)} of the optimizers, expected 1"
        )
    return holders[0] if holders else None
