"""The numbers on the page are those of results.json."""

from __future__ import annotations

import html.parser
import json
from collections.abc import Iterable
from typing import Any

import pytest
from emulation_cases import EMULATION, TinySource

from cpr_native.emulate.report import render_report
from cpr_native.emulate.runner import run_emulation

STRATEGIES = ("none", "full", "partial", "mfu")


class Tables(html.parser.HTMLParser):
    """The cells of every table by its caption."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._caption = ""
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        self._in = tag if tag in ("td", "th", "caption", "strong", "br") else ""

    def handle_data(self, data: str) -> None:
        if self._in == "caption":
            self._caption += data
        elif self._in:
            self._rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in = ""
        if tag == "table" and self._caption:
            self.found[self._caption.split()[0]] = self._rows


@pytest.fixture(scope="module")
def shown() -> tuple[dict[str, Any], dict[str, list[list[str]]]]:
    results = run_emulation(EMULATION, TinySource(), STRATEGIES)
    tables = Tables()
    tables.feed(render_report(results))
    return {run["strategy"]: run for run in json.loads(results.to_json())["runs"]}, tables.found


Shown = tuple[dict[str, Any], dict[str, list[list[str]]]]


def body(rows: list[list[str]]) -> list[list[str]]:
    return rows[1:]


def numbers(cells: Iterable[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def test_overhead_is_that_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    rows = body(tables["Hours"])
    assert [row[0] for row in rows] == ["full", "partial", "mfu"]
    for row in rows:
        run = runs[row[0]]
        parts = list(run["overhead_hours"].values())
        assert numbers(row[1:6]) == pytest.approx([*parts, sum(parts)], abs=5.1e-5)
        assert float(row[6]) == pytest.approx(run["overhead_percent"], abs=5.1e-4)
    assert runs["full"]["overhead_hours"]["lost"] > 0


def test_quality_is_that_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    rows = body(tables["On"])
    assert [row[0] for row in rows] == list(STRATEGIES)
    for row in rows:
        run, none = runs[row[0]], runs["none"]
        expected = [
            run["auc"], run["auc"] - none["auc"], run["logloss"], run["logloss"] - none["logloss"],
        ]  # fmt: skip
        assert numbers(row[1:]) == pytest.approx(expected, abs=5.1e-7)
    assert runs["partial"]["auc"] != runs["none"]["auc"]


def test_pls_is_that_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    rows = body(tables["Portion"])
    for strategy in STRATEGIES[1:]:
        run = runs[strategy]
        *failures, end = [row for row in rows if row[0] == strategy]
        pls = 0.0
        for row, failure in zip(failures, run["failures"], strict=True):
            pls += failure["pls"]
            expected = run["pls_expected"] * failure["hour"] / 56.0
            assert numbers(row[3:6]) == pytest.approx([failure["pls"], pls, expected], abs=5.1e-6)
            assert numbers((row[1], row[6])) == pytest.approx(
                [failure["hour"], failure["lost_lookups"]], abs=0.0051
            )
        assert numbers(end[4:6]) == pytest.approx([run["pls"], run["pls_expected"]], abs=5.1e-6)
        assert pls == pytest.approx(run["pls"])


def test_saves_are_those_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    for strategy, kind, count, _, cost, hours in body(tables["Saves"]):
        saves = [save for save in runs[strategy]["saves"] if save["kind"] == kind]
        assert int(count) == len(saves) > 0
        assert float(cost) == pytest.approx(sum(save["cost_hours"] for save in saves), abs=5.1e-5)
        assert numbers(hours.split(", ")) == pytest.approx([s["hour"] for s in saves], abs=0.051)


def test_times_saved_are_those_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    rows = body(tables["Rows"])
    expected = [
        [strategy, part["group"], time, count, 100 * count / sum(part["rows"]), used,
         100 * used / sum(part["lookups"])]
        for strategy in STRATEGIES[1:]
        for part in runs[strategy]["rows_saved"]
        for time, count, used in zip(part["times"], part["rows"], part["lookups"], strict=True)
    ]  # fmt: skip
    assert [row[:2] for row in rows] == [row[:2] for row in expected]
    for row, values in zip(rows, expected, strict=True):
        assert numbers(row[2:]) == pytest.approx(values[2:], abs=0.0051)


def test_shares_saved_at_least_k_times_are_those_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    head, *rows = tables["%"]
    times = [int(name.removeprefix("k = ")) for name in head[2:]]
    assert times[0] == 1
    assert times[-1] == runs["full"]["commits"]
    for strategy, weight, *shares in rows:
        parts = runs[strategy]["rows_saved"]
        pairs = [pair for part in parts for pair in zip(part["times"], part[weight], strict=True)]
        total = sum(weight for _, weight in pairs)
        expected = [100 * sum(w for time, w in pairs if time >= k) / total for k in times]
        assert numbers(shares) == pytest.approx(expected, abs=0.0051)


def _ages(failures: list[dict[str, Any]], weight: str) -> list[float]:
    """Count, mean, median, 90 % quantile and maximum of the ages of every single row or lookup."""
    every = sorted(
        hour
        for failure in failures
        for hour, count in zip(failure["row_age"]["hours"], failure["row_age"][weight], strict=True)
        for _ in range(count)
    )
    quantiles = [every[-(-len(every) * share // 100) - 1] for share in (50, 90)]
    oldest = max(failure["row_age"]["hours"][-1] for failure in failures)
    return [len(every), sum(every) / len(every), *quantiles, oldest]


def test_ages_are_those_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    pooled = [row for row in body(tables["Age"]) if len(row) == 9]
    assert len(pooled) == 3 * 2 * 2
    for strategy, hour, _, weight, *values in pooled:
        failures = [f for f in runs[strategy]["failures"] if f"{f['hour']:.2f}" == hour]
        assert len(failures) == 1
        assert numbers(values) == pytest.approx(_ages(failures, weight), abs=5.1e-4)


def test_pooled_ages_are_those_of_the_file(shown: Shown) -> None:
    runs, tables = shown
    pooled = body(tables["Ages"])
    assert len(pooled) == 3 * 2
    for strategy, weight, *values in pooled:
        assert numbers(values) == pytest.approx(_ages(runs[strategy]["failures"], weight), abs=5.1e-4)
