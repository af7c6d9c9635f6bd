"""Brings rows and dense state back from the store: the work behind `recover()` and `resume()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState, decode
from cpr_native.shard import DirtyRule, Restored, Shard, restore_rows
from cpr_native.store import CheckpointStore, RestorePoint, StoreWriter
from cpr_native.store.directory import Directory


def restore_point(
    point: RestorePoint,
    writer: StoreWriter,
    tables: TrainedCollection,
    dense: DenseState,
    shards: Sequence[Shard],
    failed: Sequence[int],
    *,
    dirty: DirtyRule,
) -> Restored:
    """Put all rows, optimizer scalars and dense state back to `point`; `failed` shards lose their rows first.

    Everything is read and checked and the rollback is committed before memory changes. `dirty`: see
    `restore_rows`. Raises CorruptionError, OSError or ValueError (another model's dense state) with nothing
    changed in memory.
    """
    plan = point.plan()
    plan.verify()
    state = decode(bytes(point.dense()["state"]))
    dense.check(state)
    writer.rollback(point)
    if plan.broken:
        writer.require_base()
    for number in failed:
        shards[number].discard()
    ranges = [row_range for shard in shards for row_range in shard.ranges]
    restored = restore_rows(tables.engine, ranges, plan, dirty=dirty)
    restored = replace(restored, skipped=point.skipped)
    tables.engine.learning_rate = point.engine["learning_rate"]
    tables.engine.step = point.engine["step"]
    dense.restore(state)
    return restored


def holds_commits(store: CheckpointStore) -> bool:
    """Return whether a save was ever committed to `store`, intact or damaged; raises OSError."""
    damaged: list[str] = []
    saves = Directory(store.path).history(damaged)
    return next(saves, None) is not None or bool(damaged)


def restore_shards(shards: Sequence[Shard], failed: Sequence[int]) -> list[Restored]:
    """Discard the rows of `failed` shards and put them back to their newest commits; no other row is touched.

    All their files are verified before the first row is discarded. Raises CorruptionError,
    NoCheckpointError or OSError with nothing changed.
    """
    plans = {number: shards[number].plan() for number in failed}
    for plan in plans.values():
        plan.verify()
    restored = []
    for number, plan in plans.items():
        shards[number].discard()
        restored.append(shards[number].restore(plan))
    return restored


class RestoredRows(TypedDict):
    """The fields of a `RecoveryReport` that come from the restored rows."""

    rows_restored: int
    rows_reset: int
    skipped: tuple[str, ...]


def restored_rows(parts: Sequence[Restored]) -> RestoredRows:
    """Return what several restores did together."""
    return {
        "rows_restored": sum(sum(part.rows.values()) for part in parts),
        "rows_reset": sum(sum(part.reset.values()) for part in parts),
        "skipped": tuple(message for part in parts for message in part.skipped),
    }


def check_shards(failed_shards: Sequence[int], shards: int) -> tuple[int, ...]:
    """Return the failed shards, ascending.

    Raises ValueError for none or a repeated one, IndexError for one outside 0 to shards - 1.
    """
    failed = tuple(sorted(int(number) for number in failed_shards))
    if not failed or len(set(failed)) != len(failed):
        raise ValueError(f"failed_shards must name at least one shard, each once, got {list(failed_shards)}")
    if failed[0] < 0 or failed[-1] >= shards:
        raise IndexError(f"failed_shards must be 0 to {shards - 1}, got {list(failed_shards)}")
    return failed
