from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_native.cli import main

COSTS = ["plan", "--shards", "8", "--total", "56", "--load-cost", "0.045", "--reschedule-cost", "0.045",
         "--jobs", "500"]  # fmt: skip
KAGGLE = [*COSTS, "--save-cost", "0.094", "--mtbf", "28"]
LOG = "hours_between\n" + "\n".join(["20", "36", "25", "31"] * 3)


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
    policies = "full delta partial delta_partial mfu ssu scar drift random round_robin"
    assert list(by_name) == policies.split()
    assert by_name["full"]["interval_hours"] == pytest.approx((2 * 0.094 * 28) ** 0.5)
    assert by_name["full"]["overhead_percent"] == pytest.approx(8.5, abs=0.05)
    assert by_name["partial"]["interval_hours"] == pytest.approx(44.8)
    assert by_name["ssu"]["interval_hours"] == pytest.approx(5.6)
    assert by_name["ssu"]["overhead_percent"] == pytest.approx(0.53, abs=0.005)
    assert by_name["ssu"]["pls_expected"] == pytest.approx(0.1)
    assert by_name["ssu"]["pls_expected_job"] == pytest.approx(0.085)
    assert set(by_name["full"]["overhead_hours"]) == {"save", "load", "lost", "reschedule"}


def test_ranges_come_from_simulated_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys)
    assert plan["simulated_jobs"] == 500
    partial = next(choice for choice in plan["strategies"] if choice["strategy"] == "partial")["simulated"]
    assert abs(partial["p_exceeds"] - 0.35) < 4 * (0.35 * 0.65 / 500) ** 0.5
    percent = partial["overhead_percent"]
    assert percent["p5"] < percent["mean"] < percent["p95"]


def test_a_higher_probability_costs_more(capsys: pytest.CaptureFixture[str]) -> None:
    loops = [_plan(capsys, "--probability", value)["closed_loop"] for value in ("0.5", "0.95")]
    assert loops[0]["first_interval_hours"] > loops[1]["first_interval_hours"]
    assert loops[0]["extra_overhead_percent"] < loops[1]["extra_overhead_percent"]
    assert loops[1]["simulated"]["p_exceeds"] <= 0.05
    assert loops[0]["open_p_exceeds"] > 0.25


def test_failure_log_takes_the_place_of_the_mtbf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    arguments = [*COSTS, "--save-cost", "0.094", "--failure-log", str(log)]
    assert main([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["job"]["mtbf_hours"] == 28.0
    assert plan["failure_log"]["gamma_shape"] > 5
    assert main(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "12 failures in 336 h, MTBF 28 h" in out
    assert "not exponential" in out
    log.write_text("hours_between\n5\nsoon\n")
    assert main(arguments) == 2
    assert "log.csv:3: hours_between must be a number of hours, got 'soon'" in capsys.readouterr().err


def test_tables_tell_bytes_and_what_priority_gains(capsys: pytest.CaptureFixture[str]) -> None:
    tables = ["--tables", "100000x16,500x16", "--samples", "1e7", "--skew", "1.05,0.5"]
    plan = _plan(capsys, *tables)
    by_name = {choice["strategy"]: choice for choice in plan["strategies"]}
    assert plan["recommended"] == "mfu"
    assert by_name["mfu"]["lost_share"] < 0.5 < by_name["random"]["lost_share"]
    assert by_name["mfu"]["simulated"]["p_exceeds"] < by_name["partial"]["simulated"]["p_exceeds"]
    assert by_name["delta"]["bytes_written"] < by_name["full"]["bytes_written"]
    assert by_name["full"]["bytes_written"] == 24 * 100_500 * 80
    assert by_name["scar"]["lost_share"] is None
    assert main([*KAGGLE, *tables]) == 0
    out = capsys.readouterr().out
    assert "written" in out
    assert max(map(len, out.splitlines())) <= 100


def test_sample_gives_the_skew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    share = np.arange(1, 5001) ** -1.1
    ids = rng.choice(5000, (20_000, 2), p=share / share.sum())
    ids[:, 1] = rng.integers(0, 5000, 20_000)
    np.save(tmp_path / "ids.npy", ids)
    tables = ["--tables", "5000x16,5000x16", "--samples", "1e7"]
    plan = _plan(capsys, *tables, "--data", str(tmp_path / "ids.npy"))
    assert [table["exponent"] for table in plan["tables"]] == pytest.approx([1.1, 0.0], abs=0.15)
    np.save(tmp_path / "ids.npy", ids + 1)
    assert main([*KAGGLE, *tables, "--data", str(tmp_path / "ids.npy")]) == 2
    assert "ids of table 0 must be 0 to 4999, got 1 to 5000" in capsys.readouterr().err


def test_criteo_sample_gives_the_skew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    lines = ["\t".join(["0", *["1"] * 13, *(f"{value:08x}" for value in row)])
             for row in rng.integers(0, 1000, (300, 26))]  # fmt: skip
    (tmp_path / "sample.tsv").write_text("\n".join(lines) + "\n")
    tables = ["--tables", ",".join(["1001x8"] * 26), "--samples", "1e6"]
    plan = _plan(capsys, *tables, "--data", str(tmp_path / "sample.tsv"))
    assert len(plan["tables"]) == 26
    assert max(table["exponent"] for table in plan["tables"]) < 0.5


def test_table_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tables.csv"
    path.write_text("name,rows,dim\nuser,1000,8\nitem,50,16\n")
    plan = _plan(capsys, "--tables", str(path), "--samples", "1000")
    assert [(table["rows"], table["dim"]) for table in plan["tables"]] == [(1000, 8), (50, 16)]
    path.write_text("rows,dim\n10,8\n0,8\n")
    assert main([*KAGGLE, "--tables", str(path), "--samples", "1000"]) == 2
    assert "tables.csv:3: must be ROWSxDIM" in capsys.readouterr().err


def test_reattaching_is_one_sentence_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    plan = _plan(capsys, "--reattach-share", "0.5", "--reattach-cost", "0.01")
    sentence = plan["reason"].split(". Priority")[0]
    assert sentence.startswith("After the 50 % of failures that leave the tables in memory, re-attach")
    assert "for the others partial recovery costs" in sentence
    assert plan["job"]["mtbf_hours"] == 56.0
    full = plan["strategies"][0]["overhead_hours"]
    assert full["reschedule"] == pytest.approx(1 * 0.045 + 1 * 0.01)


@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
def test_plot_is_written(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*KAGGLE, "--plot", str(tmp_path / name)]) == 0
    head = (tmp_path / name).read_bytes()[:400]
    assert (b"<svg" in head or b"<?xml" in head) if name.endswith("svg") else head.startswith(b"\x89PNG")
    assert "Recommended" in capsys.readouterr().out


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
        (["--probability", "1"], "--probability must be in (0, 1), got 1.0"),
        (["--failure-log", __file__], "one of --mtbf and --failure-log must be given"),
        (["--reattach-share", "1"], "--reattach-share must be in [0, 1), got 1.0"),
        (["--reattach-cost", "-1"], "--reattach-cost must be finite and at least 0"),
        (["--tables", "10x4"], "--samples must be given with --tables"),
        (["--skew", "1.0"], "--skew says how tables are used: --tables must be given too"),
        (["--tables", "10x4,5", "--samples", "9"], "table 2 of '10x4,5': must be ROWSxDIM"),
        (["--tables", "10x4", "--samples", "9", "--skew", "1,2"], "one exponent or one of each of 1 tables"),
        (["--tables", "10x4", "--samples", "9", "--skew", "-1"], "TableUse: --skew must be"),
        (["--plot", "plot.txt"], "--plot must end in .svg or .png, got plot.txt"),
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
