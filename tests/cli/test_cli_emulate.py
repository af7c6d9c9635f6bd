from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpr_native.cli import main
from cpr_native.data import hashed_table_sizes

TINY = ["--samples", "2000", "--scale", "0.0001", "--batch-size", "128"]


def _line(index: int) -> str:
    dense = "\t".join(str((index * 7 + column) % 50) for column in range(13))
    categories = "\t".join(f"{(index * 31 + column) % 97:08x}" for column in range(26))
    return f"{index % 3 == 0:d}\t{dense}\t{categories}"


def _wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_emulate_prints_a_table_that_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", *TINY, "--strategies", "none,ssu,partial_small,delta_partial"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    names = ["none", "ssu", "partial_small", "delta_partial"]
    assert [line.split()[0] for line in lines if line.startswith(tuple(names))] == names
    for name in (
        "AUC",
        "log",
        "loss",
        "overhead",
        "save",
        "load",
        "lost",
        "resch.",
        "PLS",
        "commits",
        "written",
    ):
        assert name in out


def test_emulate_prints_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "emulate",
        *TINY,
        "--strategies",
        "full",
        "--failure",
        "40:1,2",
        "--failure",
        "20:3",
        "--json",
    ]
    assert main(arguments) == 0
    results: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert results["config"]["failures"] == ["20:3", "40:1,2"]
    assert results["config"]["mtbf_hours"] == 28.0
    assert results["config"]["batch_size"] == 128
    (run,) = results["runs"]
    assert run["strategy"] == "full"
    assert [failure["shards"] for failure in run["failures"]] == [[3], [1, 2]]


def test_demo_writes_results_and_report_and_keeps_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "kept"
    arguments = [
        "demo", "--samples", "1500", "--strategies", "partial", "--out", str(out),
        "--checkpoints", str(checkpoints),
    ]  # fmt: skip
    assert main(arguments) == 0
    assert str(out / "results.json") in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert [run["strategy"] for run in results["runs"]] == ["partial"]
    assert len(results["runs"][0]["failures"]) == 2
    assert "<svg" in (out / "report.html").read_text()
    assert main(["verify", str(checkpoints / "partial")]) == 0
    capsys.readouterr()
    assert "partial exists" in _wrong(arguments, capsys)


def test_demo_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.txt"
    path.write_text("\n".join([*(_line(index) for index in range(1200)), "no sample"]) + "\n")
    arguments = [
        "emulate",
        "--data",
        str(path),
        "--max-rows",
        "2000",
        "--strategies",
        "none",
        "--json",
    ]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)["data"]
    assert (data["source"], data["lines"], data["damaged_lines"]) == (str(path), 1201, 1)
    assert data["table_sizes"] == list(hashed_table_sizes(max_rows=2000))
    assert f"1 damaged line left out, the first: {path}:1201: " in captured.err


def test_damaged_file_is_found_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.txt"
    path.write_text("\n".join([*(_line(index) for index in range(200)), "no sample"]) + "\n")
    assert main(["emulate", "--data", str(path), "--on-error", "raise"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"cpr-native: error: {path}:201: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/nonexistent/train.txt"], "Invalid value for '--data'"),
        (["--samples", "5"], "Invalid value for '--samples'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--strategies", "best"], "got 'best'"),
        (["--strategies", "none,none"], "each once"),
        (["--failure", "20"], "Invalid value for '--failure': failure '20' is not of the form"),
        (["--failure", "60:1"], "failure 60:1: hour must lie between 0 and the job's 56 hours"),
        (["--failure", "20:8"], "failure 20:8: no shard 8 among 8 shards"),
        (["--lost-fraction", "2"], "--lost-fraction must lie in (0, 1], got 2.0"),
        (["--times", "gamma", "--gamma-shape", "-1"], "--gamma-shape must be positive"),
        (["--hours", "0"], "must be positive and finite, got 0.0"),
        (["--mtbf", "0"], "--mtbf must be"),
        (["--save-cost", "0"], "--save-cost must be"),
        (["--fraction", "0"], "--fraction must lie in (0, 1], got 0.0"),
        (["--target-pls", "2"], "--target-pls must be in (0, 1), got 2.0"),
        (["--scale", "2"], "--scale must be in (0, 1], got 2.0"),
        (["--max-rows", "1"], "--max-rows must be at least"),
        (["--on-error", "ignore"], "Invalid value for '--on-error'"),
    ],
)
def test_wrong_use_names_the_option(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err = _wrong(["emulate", *arguments], capsys)
    assert err.startswith("cpr-native emulate: error: ")
    assert message in err


def test_out_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "Invalid value for '--out'" in _wrong(["demo", "--out", str(tmp_path / "file")], capsys)
    below = str(tmp_path / "file" / "below")
    assert f"Invalid value for '--out': {below}: " in _wrong(["demo", "--out", below], capsys)


def test_missing_extra_is_one_line_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["demo", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        'cpr-native: error: the report needs matplotlib: install it with pip install "cpr-native[demo]"\n'
    )
    assert list(tmp_path.iterdir()) == []
