from __future__ import annotations

import dataclasses
import html.parser
import re
import sys
from pathlib import Path

import pytest

from cpr_native.emulate import FailureRecord, Results, RunResult
from cpr_native.emulate.report import render_report, write_report
from cpr_native.emulate.results import SaveMark
from cpr_native.emulate.rows import RowAge, RowsSaved
from cpr_native.overhead import Overhead, Recovery

VOID = {"meta", "br", "link", "img", "input", "hr"}


def _run(strategy: str, mode: Recovery, hours: Overhead, pls: float) -> RunResult:
    failures: tuple[FailureRecord, ...] = ()
    if strategy != "none":
        failures = tuple(
            FailureRecord(
                hour=hour,
                shards=(shard,),
                rows_restored=54321,
                lost_lookups=987,
                mode=mode,
                pls=pls / 2,
                row_age=RowAge(samples=(10, 40), hours=(1.0, 4.0), rows=(300, 100), lookups=(0, 70)),
            )
            for hour, shard in ((11.0, 3), (40.0, 6))
        )
    return RunResult(
        strategy=strategy, seed=0, auc=0.7561 - pls / 100, logloss=0.45, pls_expected=0.1, pls=pls,
        overhead_percent=hours.total / 0.56, overhead_hours=hours, commits=2, bytes_written=12_345_678,
        failures=failures, seconds=1.0,
        rows_saved=() if strategy == "none" else (
            RowsSaved(group="prioritised", tables=7, times=(1, 3), rows=(900, 100), lookups=(10, 90)),
            RowsSaved(group="small", tables=19, times=(9,), rows=(50,), lookups=(100,)),
        ),
        saves=(
            SaveMark(hour=10.0, kind="base", bytes_written=6, cost_hours=0.1),
            SaveMark(hour=20.0, kind="priority", bytes_written=6, cost_hours=0.1),
        ),
    )  # fmt: skip


RESULTS = Results(
    data={"source": "train <b>.txt", "samples": 1000},
    config={
        "total_hours": 56.0,
        "target_pls": 0.1,
        "failures": ["11:3", "40:6"],
        "overhead_percent_expected": {"full": 8.5155, "partial": 0.53125},
        "damaged": [],
    },
    runs=(
        _run("none", "full", Overhead(), 0.0),
        _run("full", "full", Overhead(save=2.3, load=0.09, lost=2.4, reschedule=0.09), 0.0),
        _run("ssu", "partial", Overhead(save=0.1, load=0.09, reschedule=0.09), 0.04),
    ),
)


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(RESULTS)


class _Balance(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if ("role", "img") in attrs:
            self.images.append(dict(attrs)["aria-label"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_plot_has_its_table(page: str) -> None:
    assert page.count("<details>") == page.count("<svg")
    assert len(re.findall(r"<summary>Numbers: [A-Z]", page)) == 8


def test_runs_without_failure_and_without_rows_have_the_plots_they_can_have() -> None:
    run = dataclasses.replace(RESULTS.runs[2], failures=(), rows_saved=())
    page = render_report(dataclasses.replace(RESULTS, runs=(run,)))
    assert page.count("<svg") == 3
    assert "Age of rows" not in page
    empty = RowAge(samples=(), hours=(), rows=(), lookups=())
    failure = dataclasses.replace(RESULTS.runs[2].failures[0], row_age=empty)
    page = render_report(dataclasses.replace(RESULTS, runs=(dataclasses.replace(run, failures=(failure,)),)))
    assert page.count("<svg") == 5
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).lower()


def test_report_refers_to_nothing_outside_itself(page: str) -> None:
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page
    assert "<link" not in page
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', page))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))


def test_report_is_well_formed_and_every_plot_has_words(page: str) -> None:
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert len(parser.images) == page.count("<svg") == 8
    assert all("ssu" in words and "full" in words for words in parser.images)


def test_ids_within_the_page_are_unique_and_resolve(page: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    for svg in svgs:
        defined = set(re.findall(r'\sid="([^"]*)"', svg))
        used = set(re.findall(r"url\(#([^)]*)\)", svg)) | set(re.findall(r'href="#([^"]*)"', svg))
        assert used <= defined


def test_report_shows_the_figures_of_the_results(page: str) -> None:
    for text in (
        "8.71",
        "0.50",
        "54,321",
        "987",
        "12.3 MB",
        "0.7561",
        "11.00",
        "budget 0.1",
        "8.52 %",
        "11:3, 40:6",
    ):
        assert text in page


def test_text_from_outside_is_escaped(page: str) -> None:
    assert "train &lt;b&gt;.txt" in page
    assert "train <b>" not in page


def test_parts_of_the_overhead_differ_by_hatch(page: str) -> None:
    overhead = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)[0]
    assert len(set(re.findall(r"<pattern id=\"([^\"]*)\"", overhead))) >= 3


def test_report_of_one_run_without_failure() -> None:
    page = render_report(dataclasses.replace(RESULTS, runs=RESULTS.runs[:1]))
    assert page.count("<svg") == 1
    assert "without failure" in page


def test_same_results_give_the_same_page(page: str) -> None:
    assert render_report(RESULTS) == page


def test_write_report_writes_the_page(page: str, tmp_path: Path) -> None:
    write_report(RESULTS, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == page


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf'needs {name}: install it with pip install "cpr-native'):
        render_report(RESULTS)
