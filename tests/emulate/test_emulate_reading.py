from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from emulation_cases import EMULATION, TinySource

from cpr_native.emulate import Results, write_results
from cpr_native.emulate.reading import parse_results, read_results
from cpr_native.emulate.report import render_report
from cpr_native.emulate.runner import run_emulation


@pytest.fixture(scope="module")
def results() -> Results:
    return run_emulation(EMULATION, TinySource(), ("none", "ssu"))


def test_results_of_a_run_come_back_with_the_same_page(results: Results, tmp_path: Path) -> None:
    write_results(results, tmp_path / "results.json")
    again = read_results(tmp_path / "results.json")
    assert again.runs == results.runs
    assert again.to_json() == results.to_json()
    assert render_report(again) == render_report(results)


def _at(content: Any, *place: str | int) -> Any:
    for key in place:
        content = content[key]
    return content


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("version",), 1, "reads results of version 2, got version 1"),
        (("version",), True, "got version True"),
        (("version",), None, "got no version"),
        (("runs",), {}, "runs: expected a list, got dict"),
        (("runs", 1, "auc"), "0.7", r"runs\[1\]\.auc: expected a number, got '0.7'"),
        (("runs", 1, "seed"), True, r"runs\[1\]\.seed: expected a whole number, got True"),
        (("runs", 1, "failures", 0, "mode"), "half", r"failures\[0\]\.mode: expected one of full, partial"),
        (("runs", 1, "failures", 0, "shards"), [1.5], r"shards\[0\]: expected a whole number, got 1.5"),
        (
            ("runs", 1, "rows_saved", 0, "times"),
            [],
            r"rows_saved\[0\]: times, rows and lookups must be of one",
        ),
        (("runs", 1, "extra"), 1, r"runs\[1\]\.extra is unknown"),
        (("runs", 0), 3, r"runs\[0\]: expected an object, got int"),
        (("config", "total_hours"), 0, "config.total_hours must be positive"),
        (("config", "target_pls"), "x", "config.target_pls: expected a number, got 'x'"),
        (("data",), [], "data: expected an object"),
    ],
)
def test_what_is_no_result_is_named(
    results: Results, place: tuple[str | int, ...], value: object, message: str
) -> None:
    content = json.loads(results.to_json())
    parse_results(copy.deepcopy(content))
    _at(content, *place[:-1])[place[-1]] = value
    with pytest.raises(ValueError, match=message):
        parse_results(content)


def test_missing_fields_are_named(results: Results) -> None:
    for place in (("runs", 1, "auc"), ("runs", 1, "failures", 0, "row_age"), ("config", "target_pls")):
        content = json.loads(results.to_json())
        del _at(content, *place[:-1])[place[-1]]
        with pytest.raises(ValueError, match=rf"{place[-1]} is missing"):
            parse_results(content)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2, "data": NaN}', "[" * 100_000, "\udcff"])
def test_other_files_are_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"other\.json: "):
        read_results(path)
