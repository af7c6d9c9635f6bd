"""What a recovery manager did in one emulated run, as results hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cpr_native import overhead
from cpr_native.emulate.accounting import overhead_of, save_hours
from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.results import FailureRecord, SaveMark
from cpr_native.emulate.rows import RowAge, RowsSaved
from cpr_native.emulate.settings import Emulation
from cpr_native.overhead import Overhead
from cpr_native.recovery import RecoveryManager


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Its part of a `RunResult`; without arguments that of a run which saved nothing and lost nothing."""

    overhead: Overhead = field(default_factory=Overhead)
    pls_expected: float = 0.0
    pls: float = 0.0
    saves: tuple[SaveMark, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    rows_saved: tuple[RowsSaved, ...] = ()


def outcome_of(
    emulation: Emulation,
    clock: VirtualClock,
    manager: RecoveryManager,
    *,
    rows: int,
    ages: Sequence[RowAge],
    rows_saved: tuple[RowsSaved, ...],
) -> Outcome:
    """The outcome of a run whose manager is closed.

    Args:
        emulation: its settings; every failure of the schedule has struck.
        clock: its clock.
        manager: its manager.
        rows: of all tables.
        ages: of the rows that went back at each failure.
        rows_saved: how often rows were saved.
    """
    dim = emulation.recipe.model.embedding_dim
    size = {"total_rows": rows, "row_bytes": 8 + 4 * dim + 4 + 4}  # id, weight, optimizer state, counter
    records = [
        FailureRecord(
            hour=failure.hour,
            shards=failure.shards,
            rows_restored=recovery.rows_restored,
            lost_lookups=recovery.lost_lookups,
            mode=recovery.costs_as,
            pls=recovery.pls,
            row_age=age,
        )
        for failure, recovery, age in zip(emulation.schedule, manager.recoveries, ages, strict=True)
    ]
    marks = [
        SaveMark(
            hour=clock.hours(save.samples),
            kind=save.kind,
            bytes_written=save.bytes_written,
            cost_hours=save_hours(save, emulation.costs, **size),
        )
        for save in manager.saves
    ]
    partial = manager.policy.recovery == "partial"
    interval = manager.plan.partial_interval_hours
    return Outcome(
        overhead=overhead_of(manager.saves, manager.recoveries, emulation.costs, **size),
        pls_expected=overhead.expected_pls(emulation.job, interval) if partial else 0.0,
        pls=manager.pls,
        saves=tuple(marks),
        failures=tuple(records),
        rows_saved=rows_saved,
    )
