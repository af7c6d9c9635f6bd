"""A new group of trainers over shards that live on, whose rows stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpr_native.cluster.asking import ask, raise_all, within
from cpr_native.cluster.handle import ShardHandle
from cpr_native.cluster.messages import ShardStatus
from cpr_native.errors import CprError


@dataclass(frozen=True, kw_only=True)
class Regrouped:
    """What the shards agreed on: the new trainers are of `generation`, and their first step is `step + 1`.

    `behind`: steps up to `step` that a shard had not applied, by shard, because not every trainer had sent
    them to it before the group ended: it goes on without.
    """

    generation: int
    step: int
    behind: Mapping[int, int]


def regroup(
    handles: Sequence[ShardHandle], *, ranks: int, step: int | None = None, timeout: float = 60.0
) -> Regrouped:
    """Begin the next generation of trainers, `ranks` of them, in every shard, without going back.

    For a job whose trainers were restarted or lost one: dense state comes from a survivor or the last commit,
    embeddings stay. Updates of the group before that wait for others are dropped, and its later messages
    refused. `step`: that is done; None: the newest that any shard has applied. Call it in one process, and
    again after an error. Raises CprError naming shards that failed or were lost; ValueError for a step below
    that newest one.
    """
    found, errors = ask(handles, lambda handle: handle.call("status"), within(timeout))
    if errors:
        raise_all("a shard could not be asked", errors, CprError)
    statuses: dict[int, ShardStatus] = found
    newest = max(min(status.watermarks) for status in statuses.values())
    step = newest if step is None else step
    if step < newest:
        raise ValueError(f"step: expected at least {newest}, which a shard has applied, got {step}")
    generation = 1 + max(status.generation for status in statuses.values())
    _, errors = ask(
        handles,
        lambda handle: handle.call("begin_generation", generation, handle.incarnation, step, ranks),
        within(timeout),
    )
    if errors:
        raise_all(f"generation {generation} could not begin", errors, CprError)
    return Regrouped(
        generation=generation,
        step=step,
        behind={shard: step - min(status.watermarks) for shard, status in sorted(statuses.items())},
    )
