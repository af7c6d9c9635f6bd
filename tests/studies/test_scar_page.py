"""docs/results/scar.md is what its generator makes of scar.json, and says what the figures say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from scar_records import EXTRA, NOISE, write_all
from scar_study import analysis, page, sentences
from scar_study.results import collect, write_results

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLOTS = ["bound", "fraction", "reduction", "runs"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_results(write_all(folder / "records"), folder / "docs", EXTRA)
    return folder / "docs"


@pytest.fixture(scope="module")
def results(written: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / "results" / "scar.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def text(written: Path) -> str:
    return (written / "results" / "scar.md").read_text(encoding="utf-8")


def test_page_of_the_repository_is_that_of_its_results() -> None:
    pages = {path.stem: path for path in (DOCS / "results").glob("scar.*")}
    for path in pages.values():
        figures = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert page.render(figures) == path.with_suffix(".md").read_text(encoding="utf-8")


def test_page_and_plots_come_from_the_file_alone(
    written: Path, results: dict[str, Any], tmp_path: Path
) -> None:
    old = tmp_path / "results" / "plots" / "scar_no_longer_drawn.svg"
    old.parent.mkdir(parents=True)
    old.touch()
    page.write_page(results, tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert [path.stem.removeprefix("scar_") for path in files if path.suffix == ".svg"] == PLOTS
    for name in files:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes(), name
    shown = (tmp_path / "results" / "scar.md").read_text(encoding="utf-8")
    assert all(f"(plots/scar_{name}.svg)" in shown for name in PLOTS)


def test_rows_have_what_readers_of_the_file_rely_on(results: dict[str, Any]) -> None:
    keys = {
        "workload", "data", "lost", "policy", "fraction", "trials", "iteration_cost", "reduction_percent",
        "ci95",
    }  # fmt: skip
    assert all(keys <= set(row) for row in results["table"])
    assert len([row for row in results["table"] if row["part"] == "main"]) == 2 * 3 * 4


def test_reduction_is_one_less_the_ratio_of_the_means(results: dict[str, Any]) -> None:
    """Planted: a tenth of full recovery's cost at 1/2 lost, half of that at 1/4."""
    about = results["workloads"]["mlr-mnist"]
    for lost, expected in ((0.25, 95.0), (0.5, 90.0)):
        row = analysis.find(results["table"], about, part="main", policy="priority", lost=lost)
        assert row is not None
        assert row["reduction_percent"] == pytest.approx(expected, abs=0.2)
        assert row["ci95"][0] < row["reduction_percent"] < row["ci95"][1]
        assert row["corrected_percent"] is None
        assert row["whole_percent"] < row["reduction_percent"]


def test_a_stochastic_workload_is_judged_with_and_without_its_noise(results: dict[str, Any]) -> None:
    bars = {(bar["name"], bar["lost"]): bar for bar in results["goals"]["bars"]}
    noisy = bars["cnn-mnist", 0.5]
    mean_full = sum((2 + trial) % 16 for trial in range(40)) / 40
    assert noisy["reduction_percent"] == pytest.approx(90 - 100 * NOISE / mean_full, abs=0.3)
    assert noisy["corrected_percent"] == pytest.approx(90.0, abs=0.1)
    assert noisy["corrected_ci95"][0] > analysis.LEAST
    assert not noisy["reached"], "one of the two is below"
    assert bars["mlr-mnist", 0.5]["reached"]
    assert results["goals"]["best"]["name"] == "mlr-mnist"


def test_planted_study_says_its_verdicts(text: str) -> None:
    assert "3 of 4 reach a reduction of at least 78 %" in text
    assert "Logistic regression, MNIST, 1/4 lost: reached, 95." in text
    assert "CNN, MNIST, 1/2 lost: missed," in text
    assert "random: 5 of 5 cost at most the bound, on average 25 % of it." in text
    assert (
        "adversarial: 0 of 5 cost at most the bound, on average 125 % of it; the worst exceeds it by" in text
    )
    assert "The estimate from the steps alone refuses: the convergence is not linear (yet)." in text
    assert "CNN, MNIST, 1/2 lost: zeroed state costs more iterations than restored state, +0.40" in text
    assert "drift is not resolved from the copy, +0.00" in text
    assert "800 bytes instead of the copy's 4,000 (20.0 %)" in text
    assert "full recovery after 34 iterations costs 2.00, as the 2 expected." in text
    assert "partial alone, 1/2 lost: " in text
    assert (
        "Logistic regression, MNIST, 1/2 lost: partial alone costs more iterations than priority, +2." in text
    )


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.1, "reached, 90."),
        (0.2195, "only the interval reaches below 78 %"),
        (0.4, "the mean is below 78 %"),
    ],
)
def test_verdict_follows_the_figures(tmp_path: Path, share: float, words: str) -> None:
    found = collect(write_all(tmp_path, mlr={"priority": share}), EXTRA)
    bar = next(b for b in found["goals"]["bars"] if (b["name"], b["lost"]) == ("mlr-mnist", 0.5))
    assert words in sentences.goal_bar(bar, found["workloads"]["mlr-mnist"], found["goals"]["least"])


def test_best_reduction_is_claimed_only_above_its_goal(tmp_path: Path) -> None:
    good = collect(write_all(tmp_path / "good", mlr={"priority": 0.05}), EXTRA)
    bad = collect(write_all(tmp_path / "bad", mlr={"priority": 0.15}), EXTRA)
    assert "at 1/4 lost: reached, the highest is 97." in sentences.goals_text(
        good["goals"], good["workloads"]
    )
    assert "at 1/4 lost: missed, the highest is 92." in sentences.goals_text(bad["goals"], bad["workloads"])


def test_failures_that_never_get_there_count_with_the_time_they_had(tmp_path: Path) -> None:
    records = write_all(tmp_path)
    record = json.loads(records.path("failures", "mlr-mnist", 2).read_text("utf-8"))
    for entry in record["failures"]:
        entry["cost"] = None
    records.write("failures", "mlr-mnist", 2, record)
    found = collect(records, EXTRA)
    row = analysis.find(
        found["table"], found["workloads"]["mlr-mnist"], part="main", policy="priority", lost=0.5
    )
    assert row is not None
    assert row["unreached"] == 1
    assert row["iteration_cost"] > 180 / 40


@pytest.mark.parametrize("trials", [1, 3])
def test_a_small_study_has_a_page(tmp_path: Path, trials: int) -> None:
    write_results(write_all(tmp_path / "records", trials), tmp_path, {})
    assert "Against the goals" in (tmp_path / "results" / "scar.md").read_text(encoding="utf-8")


def test_a_missing_figure_is_an_error(results: dict[str, Any]) -> None:
    broken = copy.deepcopy(results)
    del broken["workloads"]["mlr-mnist"]["iterations"]
    with pytest.raises(jinja2.UndefinedError, match="iterations"):
        page.render(broken)


@pytest.mark.parametrize(
    ("lag", "cost", "alone", "words", "disturb"),
    [
        (1.0, 1.1, 3.0, "The lag explains the cost", False),
        (1.0, 2.0, 3.1, "does not explain the cost: copies of one age", True),
        (1.0, 2.0, 4.5, "does not explain the cost: copies of one age", False),
        (2.0, 1.0, 3.0, "is made good sooner", False),
    ],
)
def test_sentence_of_the_reason_follows_the_lag(
    results: dict[str, Any], lag: float, cost: float, alone: float, words: str, disturb: bool
) -> None:
    about = results["workloads"]["mlr-mnist"]
    row = {"iteration_cost": cost, "lag_cost": lag, "rollback_cost": 7.0, "lost": 0.5}
    text = sentences.why_missed(about, row, {**row, "iteration_cost": alone, "lag_cost": 3.0})
    assert words in text
    assert ("disturb each other" in text) is disturb
    assert "disturb" not in sentences.why_missed(about, row, None)
