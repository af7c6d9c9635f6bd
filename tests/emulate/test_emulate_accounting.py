from __future__ import annotations

from typing import Any

import pytest

from cpr_native.emulate.accounting import overhead_of, save_hours, save_share
from cpr_native.overhead import KAGGLE, Costs
from cpr_native.recovery import RecoveryReport, SaveReport

ROWS = 1000
ROW_BYTES = 80


def _save(rows: int, *, extra: int = 0, reason: Any = "due", kind: Any = "base") -> SaveReport:
    return SaveReport(
        sequence=1, kind=kind, reason=reason, step=1, samples=128, rows=rows,
        bytes_written=rows * ROW_BYTES + extra, stall_seconds=0.0, seconds=0.0,
    )  # fmt: skip


def _recovery(mode: Any, hours_lost: float) -> RecoveryReport:
    return RecoveryReport(
        mode=mode, restart=False, shards=(3,), step=1, samples=128, lost_samples=0, hours_lost=hours_lost,
        rows_restored=10, rows_reset=0, lost_lookups=0, pls=0.0, seconds=0.0, skipped=(),
    )  # fmt: skip


def _share(save: SaveReport) -> float:
    return save_share(save, total_rows=ROWS, row_bytes=ROW_BYTES)


def test_share_of_a_full_save_is_one() -> None:
    assert _share(_save(ROWS, extra=5000)) == 1.0


def test_share_is_that_of_the_rows_without_anything_else() -> None:
    assert _share(_save(125)) == pytest.approx(0.125)


def test_dense_parameters_are_paid_whole_at_every_save() -> None:
    dense = ROWS * ROW_BYTES
    assert _share(_save(125, extra=dense)) == pytest.approx((0.125 + 1) / 2)


def test_more_rows_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="save 1 has 1001 rows, the tables have 1000"):
        _share(_save(1001))


def test_fixed_part_of_the_cost_does_not_shrink() -> None:
    costs = Costs(save=0.1, load=0.0, reschedule=0.0, save_fixed=0.04)
    hours = save_hours(_save(500), costs, total_rows=ROWS, row_bytes=ROW_BYTES)
    assert hours == pytest.approx(0.04 + 0.06 * 0.5)


@pytest.mark.parametrize("reason", ["start", "close"])
def test_saves_outside_training_are_free(reason: str) -> None:
    save = _save(ROWS, reason=reason)
    assert save_hours(save, KAGGLE.costs, total_rows=ROWS, row_bytes=ROW_BYTES) == 0.0


def test_overhead_of_full_recovery_by_cause() -> None:
    overhead = overhead_of(
        [_save(ROWS)] * 24, [_recovery("full", 1.25), _recovery("full", 0.75)], KAGGLE.costs,
        total_rows=ROWS, row_bytes=ROW_BYTES,
    )  # fmt: skip
    assert overhead.save == pytest.approx(24 * 0.094)
    assert overhead.load == pytest.approx(0.09)
    assert overhead.lost == 2.0
    assert overhead.reschedule == pytest.approx(0.09)
    assert overhead.percent(56.0) == pytest.approx(100 * (24 * 0.094 + 0.18 + 2.0) / 56.0)


def test_partial_recovery_has_costs_of_its_own() -> None:
    costs = Costs(save=0.1, load=1.0, reschedule=2.0, load_partial=0.25, reschedule_partial=0.5)
    overhead = overhead_of([], [_recovery("partial", 0.0)], costs, total_rows=ROWS, row_bytes=ROW_BYTES)
    assert (overhead.save, overhead.load, overhead.lost, overhead.reschedule) == (0, 0.25, 0, 0.5)
