"""Brings rows and dense state back from the store: the work behind `recover()` and `resume()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from time import perf_counter
from typing import Any

from cpr_native.errors import CprError
from cpr_native.overhead import Recovery
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState, decode
from cpr_native.recovery.gang import Gang
from cpr_native.recovery.report import RecoveryReport
from cpr_native.shard import Restored, Shard, restore_rows
from cpr_native.store import CheckpointStore, RestorePoint, StoreWriter
from cpr_native.store.part_writer import PartWriter
from cpr_native.store.restore import Mode

_NOTES = ("due_saves", "lookups", "pls", "unsaved_lookups")


class HalfRestored:
    """Remembers the shards whose restore was interrupted, so that no save takes their rows."""

    def __init__(self) -> None:
        self.shards: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise CprError when there are any."""
        if self.shards:
            raise CprError(
                f"the restore of shards {list(self.shards)} was interrupted and left their rows half "
                f"restored: call recover(failed_shards={list(self.shards)}) again before anything else"
            )

    @contextmanager
    def writing(self, shards: Sequence[int]) -> Iterator[None]:
        """Hold `shards` for half restored from now on, unless the block ends without an error."""
        self.shards = tuple(shards)
        yield
        self.shards = ()


def restore_point(
    point: RestorePoint,
    writer: StoreWriter | PartWriter,
    tables: TrainedCollection,
    dense: DenseState,
    shards: Sequence[Shard],
    failed: Sequence[int],
    half: HalfRestored,
    *,
    restart: bool,
    gang: Gang | None = None,
) -> Restored:
    """Put all rows, optimizer scalars and dense state back to `point`; `failed` shards lose their rows first.

    Everything is read and checked and the rollback is committed before memory changes. `restart`: the
    dirty bits died with the process; `gang`: its processes do so together, each with its shard. Raises
    CorruptionError, OSError or ValueError (another model's dense state, another loader's position, a save
    that no manager made) with nothing changed in memory, unless `half` says so.
    """
    plan = point.plan(None if gang is None else [gang.shard])
    plan.verify()
    saved = point.dense()
    missing = [name for name in _NOTES if name not in point.info] + ["state"] * ("state" not in saved)
    if missing:
        raise ValueError(
            f"{point.directory.path}: commit {point.sequence} was not made by a RecoveryManager: it has no "
            f"{', '.join(missing)}"
        )
    state = dense.own(decode(bytes(saved["state"])))
    dense.check(state)
    if isinstance(writer, PartWriter):
        assert gang is not None
        writer.rollback(point, gang.meet)
    else:
        writer.rollback(point)
    with half.writing(failed):
        dense.restore(state)
        tables.module.sync()
        for shard in shards:
            if shard.number in failed:
                shard.discard()
        ranges = [row_range for shard in shards for row_range in shard.ranges]
        restored = restore_rows(tables.engine, ranges, plan, dirty="priority" if restart else "clear")
        tables.module.load_optimizer_scalars(point.engine)
    return replace(restored, skipped=point.skipped)


def mode_of(recovery: Recovery) -> Mode:
    """Return what a restart reads: one exact step, or under partial recovery the newest rows there are."""
    return "exact" if recovery == "full" else "running"


def holds_commits(store: CheckpointStore) -> bool:
    """Return whether a save was ever committed to `store`, intact or damaged; raises OSError."""
    damaged: list[str] = []
    saves = store.directory().history(damaged)
    return next(saves, None) is not None or bool(damaged)


def check_empty(store: CheckpointStore) -> None:
    """Raise ValueError when `store` holds commits; OSError."""
    if holds_commits(store):
        raise ValueError(
            f"{store} holds commits already; call resume() first to go on from them, or use an empty "
            "directory"
        )


def restore_shards(
    shards: Sequence[Shard], failed: Sequence[int], half: HalfRestored, *, restart: bool = False
) -> list[Restored]:
    """Discard the rows of `failed` shards and put them back to their newest commits; no other row is touched.

    `restart`: their dirty bits died with the process. All their files are verified before the first row is
    discarded. Raises CorruptionError, NoCheckpointError or OSError with nothing changed, unless `half` says
    so.
    """
    plans = [(shard, shard.plan()) for shard in shards if shard.number in failed]
    for _, plan in plans:
        plan.verify()
    restored = []
    with half.writing(failed):
        for shard, plan in plans:
            shard.discard()
            restored.append(shard.restore(plan, restart=restart))
    return restored


def report(parts: Sequence[Restored], started: float, **fields: Any) -> RecoveryReport:
    """Return the report of a recovery that `started` (seconds of `perf_counter`) and made these restores."""
    return RecoveryReport(
        rows_restored=sum(sum(part.rows.values()) for part in parts),
        rows_quantised=sum(part.quantised for part in parts),
        rows_reset=sum(sum(part.reset.values()) for part in parts),
        skipped=tuple(message for part in parts for message in part.skipped),
        seconds=perf_counter() - started,
        **fields,
    )


def check_shards(failed_shards: Sequence[int], shards: int) -> tuple[int, ...]:
    """Return the failed shards, ascending.

    Raises ValueError for none or a repeated one, IndexError for one outside 0 to shards - 1, TypeError.
    """
    failed = tuple(sorted(index(number) for number in failed_shards))
    if not failed or len(set(failed)) != len(failed):
        raise ValueError(f"failed_shards must name at least one shard, each once, got {list(failed_shards)}")
    if failed[0] < 0 or failed[-1] >= shards:
        raise IndexError(f"failed_shards must be 0 to {shards - 1}, got {list(failed_shards)}")
    return failed
