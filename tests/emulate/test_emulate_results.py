from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cpr_native.emulate import FailureRecord, Results, RunResult, write_results
from cpr_native.emulate.results import SaveMark
from cpr_native.emulate.rows import RowAge, RowsSaved
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
    failures=(
        FailureRecord(
            hour=20.5,
            shards=(1, 4),
            rows_restored=7,
            lost_lookups=11,
            mode="partial",
            pls=0.03,
            row_age=RowAge(samples=(5, 40), hours=(0.5, 4.0), rows=(3, 4), lookups=(9, 2)),
        ),
    ),
    seconds=2.5,
    saves=(SaveMark(hour=20.0, kind="base", bytes_written=1234, cost_hours=0.1),),
    rows_saved=(RowsSaved(group="small", tables=2, times=(0, 9), rows=(1, 6), lookups=(0, 70)),),
)
RESULTS = Results(data={"source": "generator"}, config={"target_pls": 0.1}, runs=(RUN,))


def test_results_have_the_documented_shape(tmp_path: Path) -> None:
    write_results(RESULTS, tmp_path / "results.json")
    loaded = json.loads((tmp_path / "results.json").read_text())
    assert loaded == {
        "version": 2,
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
                        "pls": 0.03,
                        "row_age": {
                            "samples": [5, 40],
                            "hours": [0.5, 4.0],
                            "rows": [3, 4],
                            "lookups": [9, 2],
                        },
                    }
                ],
                "seconds": 2.5,
                "saves": [{"hour": 20.0, "kind": "base", "bytes_written": 1234, "cost_hours": 0.1}],
                "rows_saved": [
                    {"group": "small", "tables": 2, "times": [0, 9], "rows": [1, 6], "lookups": [0, 70]}
                ],
            }
        ],
    }
    assert list(loaded["runs"][0])[:3] == ["strategy", "seed", "auc"]


def test_text_is_the_same_every_time() -> None:
    assert RESULTS.to_json() == RESULTS.to_json()
    assert RESULTS.to_json().endswith("}\n")


def test_lists_of_numbers_are_on_one_line_and_text_is_as_it_was() -> None:
    text = dataclasses.replace(RESULTS, data={"source": "[\n  1,\n  2\n]", "odd": [1, "2"]}).to_json()
    assert '"shards": [1, 4],\n' in text
    assert '"hours": [0.5, 4.0],\n' in text
    assert json.loads(text)["data"] == {"source": "[\n  1,\n  2\n]", "odd": [1, "2"]}


def test_pls_adds_up_failure_by_failure() -> None:
    failure = RUN.failures[0]
    later = dataclasses.replace(failure, hour=30.0, pls=0.01)
    run = dataclasses.replace(RUN, failures=(failure, later))
    assert run.pls_trace == ((20.5, 0.03), (30.0, 0.04))


@pytest.mark.parametrize(
    "wrong", [{"rows": (1,)}, {"times": (9, 0)}, {"times": (3, 3)}, {"lookups": (0, -1)}, {"times": (-1, 0)}]
)
def test_histograms_are_checked(wrong: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="times"):
        dataclasses.replace(RUN.rows_saved[0], **wrong)  # type: ignore[arg-type]


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
