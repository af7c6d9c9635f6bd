from __future__ import annotations

import json
from typing import Any

import pytest

from cpr_native.cli import main

KAGGLE = [
    "plan", "--shards", "8", "--mtbf", "28", "--total", "56", "--save-cost", "0.094", "--load-cost", "0.045",
    "--reschedule-cost", "0.045",
]  # fmt: skip


def _plan(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*KAGGLE, *more, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    loaded: dict[str, Any] = json.loads(captured.out)
    return loaded


def test_plan_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys)
    assert plan["recommended"] == "ssu"
    by_name = {choice["strategy"]: choice for choice in plan["strategies"]}
    assert list(by_name) == ["full", "partial", "mfu", "ssu"]
    assert by_name["full"]["interval_hours"] == pytest.approx((2 * 0.094 * 28) ** 0.5)
    assert by_name["full"]["overhead_percent"] == pytest.approx(8.5, abs=0.05)
    assert by_name["partial"]["interval_hours"] == pytest.approx(44.8)
    assert by_name["ssu"]["interval_hours"] == pytest.approx(5.6)
    assert by_name["ssu"]["overhead_percent"] == pytest.approx(0.53, abs=0.005)
    assert by_name["ssu"]["pls_expected"] == pytest.approx(0.1)
    assert by_name["ssu"]["pls_expected_job"] == pytest.approx(0.085)
    assert set(by_name["full"]["overhead_hours"]) == {"save", "load", "lost", "reschedule"}


def test_fixed_cost_of_a_save_speaks_against_many_small_ones(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, "--save-cost", "0.5", "--save-fixed-cost", "0.5", "--fraction", "0.05")
    assert plan["recommended"] == "partial"
    assert "fixed cost" in plan["reason"]


def test_full_recovery_is_recommended_where_partial_does_not_pay(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, "--target-pls", "0.0005")
    assert plan["recommended"] == "full"
    assert "does not pay" in plan["reason"]


def test_text_names_recommendation_and_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(KAGGLE) == 0
    out = capsys.readouterr().out
    assert "* ssu" in out
    assert "Recommended: ssu. Partial recovery costs 0.53 %" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--mtbf", "-1"], "Job: --mtbf must be a finite number above 0, got -1.0"),
        (["--total", "nan"], "Job: --total must be a finite number above 0, got nan"),
        (["--save-cost", "0"], "Costs: --save-cost must be a finite number above 0"),
        (["--load-cost", "-1"], "Costs: --load-cost must be a finite number of at least 0"),
        (["--save-fixed-cost", "1"], "Costs: --save-fixed-cost must be at most save (0.094), got 1.0"),
        (["--failed-shards", "9"], "Job: --failed-shards must be 1 to shards (8), got 9"),
        (["--target-pls", "1"], "--target-pls must be in (0, 1), got 1.0"),
        (["--fraction", "0"], "--fraction must be in (0, 1], got 0.0"),
        (["--mtbf", "0.05"], "--mtbf of 0.05 is no longer than one save"),
        (["--target-pls", "0.00001"], "feasible is a --target-pls of at least"),
    ],
)
def test_values_out_of_range_name_the_option(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*KAGGLE, *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("cpr-native plan: error: ")
    assert message in err
    assert err.count("\n") == 1
