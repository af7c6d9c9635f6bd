from __future__ import annotations

import numpy as np
import pytest

from cpr_native.overhead.rows import TableUse, fit_exponent, policy_use, touched_rows


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("rows", [50, 20_000])
def test_touched_rows_are_those_of_draws(rows: int, exponent: float) -> None:
    share = np.arange(1, rows + 1) ** -exponent
    rng = np.random.default_rng(1)
    drawn = rng.choice(rows, 30_000, p=share / share.sum())
    assert touched_rows(rows, exponent, 30_000) == pytest.approx(len(np.unique(drawn)), rel=0.02)


@pytest.mark.parametrize("exponent", [0.3, 1.05])
def test_exponent_is_found_again(exponent: float) -> None:
    touched = round(touched_rows(100_000, exponent, 50_000))
    assert fit_exponent(100_000, 50_000, touched) == pytest.approx(exponent, abs=0.01)


def test_impossible_counts_raise() -> None:
    with pytest.raises(ValueError, match="touched must be 1 to 10, got 11"):
        fit_exponent(100, 10, 11)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        TableUse(rows=0, dim=4, exponent=1.0)
    with pytest.raises(ValueError, match="exponent must be"):
        TableUse(rows=1, dim=4, exponent=-1.0)


def use(
    choice: str, *, exponent: float = 1.05, samples: float = 1e5, rows: int = 100_000
) -> tuple[float, float]:
    table = TableUse(rows=rows, dim=16, exponent=exponent)
    done = policy_use(
        [table],
        [0],
        choice,
        fraction=0.125,
        cover_hours=8.0,
        total_hours=64.0,
        samples_per_hour=samples,
    )
    return done.lost_share, done.save_share


def test_order_of_the_policies() -> None:
    mfu, ssu, random = use("mfu")[0], use("ssu")[0], use("random")[0]
    assert mfu < ssu < random
    assert random > 1.3, "rows come round by chance: their lookups wait for T_save in the mean, not for half"
    assert use("mfu")[1] == pytest.approx(0.125, rel=0.01)


def test_unlimited_delta_loses_the_newest_interval_alone() -> None:
    lost, saved = use("delta")
    assert lost == pytest.approx(0.125, rel=0.05)
    assert saved == pytest.approx(touched_rows(100_000, 1.05, 1e5) / 100_000, rel=0.03)


def test_where_the_budget_does_not_bind_mfu_is_an_unlimited_delta() -> None:
    assert use("mfu", samples=2000.0)[0] == pytest.approx(use("delta", samples=2000.0)[0], rel=1e-6)


def test_even_lookups_gain_little() -> None:
    assert use("mfu", exponent=0.0, samples=1e6)[0] > 0.9


def test_small_tables_are_saved_whole() -> None:
    tables = [TableUse(rows=10_000, dim=16, exponent=1.0), TableUse(rows=100, dim=16, exponent=1.0)]
    settings = {"fraction": 0.125, "cover_hours": 8.0, "total_hours": 64.0, "samples_per_hour": 1e5}
    done = policy_use(tables, [0], "mfu", **settings)
    assert done.save_bytes == pytest.approx((1250 + 100) * 80)
    assert done.save_share == pytest.approx(1350 / 10_100)
