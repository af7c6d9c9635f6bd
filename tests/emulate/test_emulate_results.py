from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cpr_native.emulate import FailureRecord, Results, RunResult, write_results
from cpr_native.overhead import Overhead

RUN = RunResult(
    strategy="mfu",
    seed=3,
    auc=0.75,
    logloss=0.46,
    overhead_percent=0.5,
    overhead_hours=Overhead(save=0.1, load=0.02, lost=0.0, reschedule=0.16),
    pls_expected=0.1,
    pls=0.03,
    commits=9,
    bytes_written=1234,
    failures=(FailureRecord(hour=20.5, shards=(1, 4), rows_restored=7, lost_lookups=11, mode="partial"),),
    seconds=2.5,
    pls_trace=((20.5, 0.03),),
)
RESULTS = Results(data={"source": "generator"}, config={"target_pls": 0.1}, runs=(RUN,))


def test_results_have_the_documented_shape(tmp_path: Path) -> None:
    write_results(RESULTS, tmp_path / "results.json")
    loaded = json.loads((tmp_path / "results.json").read_text())
    assert loaded == {
        "data": {"source": "generator"},
        "config": {"target_pls": 0.1},
        "runs": [
            {
                "strategy": "mfu",
                "seed": 3,
                "auc": 0.75,
                "logloss": 0.46,
                "overhead_percent": 0.5,
                "overhead_hours": {"save": 0.1, "load": 0.02, "lost": 0.0, "reschedule": 0.16},
                "pls_expected": 0.1,
                "pls": 0.03,
                "commits": 9,
                "bytes_written": 1234,
                "failures": [
                    {
                        "hour": 20.5,
                        "shards": [1, 4],
                        "rows_restored": 7,
                        "lost_lookups": 11,
                        "mode": "partial",
                    }
                ],
                "seconds": 2.5,
            }
        ],
    }
    assert list(loaded["runs"][0])[:3] == ["strategy", "seed", "auc"]


def test_text_is_the_same_every_time() -> None:
    assert RESULTS.to_json() == RESULTS.to_json()
    assert RESULTS.to_json().endswith("}\n")


def test_numbers_without_json_form_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("old")
    bad = dataclasses.replace(RESULTS, runs=(dataclasses.replace(RUN, auc=float("nan")),))
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_results(bad, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_raises_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_results(RESULTS, tmp_path / "absent" / "results.json")
    assert str(tmp_path / "absent") in str(caught.value.filename)


def test_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    target.mkdir()
    with pytest.raises(IsADirectoryError):
        write_results(RESULTS, target)
    assert list(tmp_path.iterdir()) == [target]
