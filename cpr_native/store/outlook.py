"""What each kind of recovery would restore from a checkpoint, and how old its rows would be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store.points import CheckpointStore
from cpr_native.store.restore import ChainPlan, Mode
from cpr_native.store.stored import StoredRows, stored_rows


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A recovery and what it restores.

    `recovery`: "full" (the newest exact point), "restart" (the whole job under a partial policy) or "shard 3"
    (partial). `step`: of training that it goes back to, of its newest rows; `commits`: their kinds, oldest
    first, of the shard with most; `rows`, `bytes`: read; `problem`: why it isn't possible, if so.
    """

    recovery: str
    step: int = 0
    commits: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    problem: str | None = None


def outlook(store: CheckpointStore) -> list[Outlook]:
    """Returns every kind of recovery. Every byte that one would read is verified; raises OSError."""
    found = [_whole(store, "full", "exact"), _whole(store, "restart", "running")]
    identity = store.directory().whole.identity
    shards = identity.placement.shards if identity else 0
    return [*found, *(_shard(store, shard) for shard in range(shards))]


def _whole(store: CheckpointStore, recovery: str, mode: Mode) -> Outlook:
    try:
        point = store.latest(mode)
        plan = point.plan()
    except (NoCheckpointError, CorruptionError) as error:
        return Outlook(recovery=recovery, problem=str(error))
    longest = max(plan.chains, key=lambda chain: len(chain.commits))
    return Outlook(
        recovery=recovery, step=point.step, commits=_kinds(longest), rows=plan.rows, bytes=plan.bytes
    )


def _shard(store: CheckpointStore, shard: int) -> Outlook:
    recovery = f"shard {shard}"
    try:
        plan = store.shard_plan(shard)
    except (NoCheckpointError, CorruptionError) as error:
        return Outlook(recovery=recovery, problem=str(error))
    (chain,) = plan.chains
    step = max((commit.step for commit in chain.commits), default=0)
    return Outlook(recovery=recovery, step=step, commits=_kinds(chain), rows=plan.rows, bytes=plan.bytes)


def _kinds(chain: ChainPlan) -> tuple[str, ...]:
    return tuple(commit.kind for commit in chain.commits)


def row_ages(store: CheckpointStore) -> dict[int | None, int]:
    """Returns how many rows have their newest intact copy so many steps before the newest save of any.

    None: rows that were never saved, which a recovery puts back to their initial values. Shards that can't
    be restored are left out. Reads every segment that `shard_plan` of a shard needs; raises OSError.
    """
    identity = store.directory().whole.identity
    steps: Counter[int | None] = Counter()
    for shard in range(identity.placement.shards if identity else 0):
        try:
            (chain,) = store.shard_plan(shard).chains
        except (NoCheckpointError, CorruptionError):
            continue
        steps.update(_steps_of_rows(chain))
    newest = max((step for step in steps if step is not None), default=0)
    ages = {newest - step: rows for step, rows in steps.items() if step is not None}
    never = {None: steps[None]} if steps[None] else {}
    return dict(sorted(ages.items())) | never


def _steps_of_rows(chain: ChainPlan) -> Counter[int | None]:
    """Rows of a shard by the step of their newest copy."""
    found: Counter[int | None] = Counter()
    identity = chain.reader.identity
    assert identity is not None
    seen: dict[str, NDArray[np.bool_]] = {}
    for table in identity.schema.tables:
        begin, end = identity.placement.row_range(identity.schema, table.name, chain.shard)
        seen[table.name] = np.zeros(end - begin, np.bool_)
    for commit in reversed(chain.commits):
        for record in commit.segments:
            path = chain.reader.segment_path(record.name)
            with stored_rows(path, record, commit.schema, commit.placement, chain.shard) as tables:
                for stored in tables:
                    _count(stored, commit.step, seen[stored.table], found)
    found[None] += sum(int((~rows).sum()) for rows in seen.values())
    return found


def _count(stored: StoredRows, step: int, seen: NDArray[np.bool_], found: Counter[int | None]) -> None:
    at = stored.ids() - stored.begin
    new = ~seen[at]
    seen[at] = True
    steps = stored.steps()
    if steps is None:
        found[step] += int(new.sum())
        return
    for value, rows in zip(*np.unique(steps[new], return_counts=True), strict=True):
        found[int(value)] += int(rows)
