"""Emulated overhead of a run from what its recovery manager saved and recovered."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_native.overhead import Costs, Overhead
from cpr_native.recovery import RecoveryReport, SaveReport


def save_share(save: SaveReport, *, total_rows: int, row_bytes: int) -> float:
    """The bytes of `save` relative to a save of every row at the same moment, in (0, 1].

    What a save holds beside rows (dense parameters, manifests) is in both: a priority save pays for it whole.

    Args:
        save: a committed save.
        total_rows: rows of all tables, all of one embedding dim.
        row_bytes: bytes of one row in a segment, its id, optimizer state and counter included.

    Raises:
        ValueError: `save` has more rows than there are.
    """
    if save.rows > total_rows:
        raise ValueError(f"save {save.sequence} has {save.rows} rows, the tables have {total_rows}")
    return save.bytes_written / (save.bytes_written + (total_rows - save.rows) * row_bytes)


def save_hours(save: SaveReport, costs: Costs, *, total_rows: int, row_bytes: int) -> float:
    """Hours charged for `save`: none for those before the first and after the last step.

    Neither is a part of CPR's equations, where saves interrupt training (MLSys 2021, section 2).

    Raises:
        ValueError: see `save_share`.
    """
    if save.reason in ("start", "close"):
        return 0.0
    return costs.save_of(save_share(save, total_rows=total_rows, row_bytes=row_bytes))


def overhead_of(
    saves: Sequence[SaveReport],
    recoveries: Sequence[RecoveryReport],
    costs: Costs,
    *,
    total_rows: int,
    row_bytes: int,
) -> Overhead:
    """The overhead of one run in hours, split as in CPR (MLSys 2021, section 2).

    Saves cost `costs.save_of` of their share of a full save; each recovery costs one load and one reschedule
    of its mode; lost work is what was trained again.

    Args:
        saves, recoveries: of the run.
        costs: published or measured costs, hours.
        total_rows, row_bytes: see `save_share`.

    Raises:
        ValueError: see `save_share`.
    """
    return Overhead(
        save=sum(save_hours(save, costs, total_rows=total_rows, row_bytes=row_bytes) for save in saves),
        load=sum(costs.load_of(recovery.costs_as) for recovery in recoveries),
        lost=sum(recovery.hours_lost for recovery in recoveries),
        reschedule=sum(costs.reschedule_of(recovery.costs_as) for recovery in recoveries),
    )
