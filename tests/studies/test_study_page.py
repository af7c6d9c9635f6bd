"""docs/results/cpr.md is what its generator makes of cpr.json, and its sentences say what the figures say."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
from cpr_study import page, sentences
from cpr_study.results import collect, write_results
from study_common.pages import encode
from study_common.records import Records
from study_records import EXTRA, write_all

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLOTS = [
    "budget", "closed_loop", "proxy", "quality_auc", "quality_progressive", "scaling", "sensitivity_failures",
    "sensitivity_shards_constant", "sensitivity_shards_inverse", "sensitivity_times", "tenths",
]  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents' folder of a planted study."""
    folder = tmp_path_factory.mktemp("study")
    write_results(write_all(folder / "records"), folder / "docs", EXTRA)
    return folder / "docs"


@pytest.fixture(scope="module")
def results(written: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((written / "results" / "cpr.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def text(written: Path) -> str:
    return (written / "results" / "cpr.md").read_text(encoding="utf-8")


def test_page_of_the_repository_is_that_of_its_results() -> None:
    pages = {path.stem: path for path in (DOCS / "results").glob("cpr.*")}
    for path in pages.values():
        figures = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert page.render(figures) == path.with_suffix(".md").read_text(encoding="utf-8")


def test_page_and_plots_come_from_the_file_alone(
    written: Path, results: dict[str, Any], tmp_path: Path
) -> None:
    old = tmp_path / "results" / "plots" / "cpr_no_longer_drawn.svg"
    old.parent.mkdir(parents=True)
    old.touch()
    page.write_page(results, tmp_path)
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert [path.stem.removeprefix("cpr_") for path in files if path.suffix == ".svg"] == PLOTS
    for name in files:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes(), name


def test_plots_have_no_date_and_are_all_shown(written: Path, text: str) -> None:
    for name in PLOTS:
        svg = (written / "results" / "plots" / f"cpr_{name}.svg").read_text(encoding="utf-8")
        assert svg.startswith("<?xml")
        assert "dc:date" not in svg
        assert f"(plots/cpr_{name}.svg)" in text


def test_file_has_the_figures_that_readers_of_it_rely_on(results: dict[str, Any]) -> None:
    keys = {
        "config", "setup", "policy", "overhead_formula_percent", "overhead_measured_percent",
        "auc_delta", "auc_ci95", "auc_loss_upper95", "progressive_delta",
        "progressive_ci95", "bytes_written", "seeds",
    }  # fmt: skip
    assert all(keys <= set(row) for row in results["table"])
    assert all({"name", "rank_correlation", "ci95"} <= set(row) for row in results["proxy"])
    assert len(results["scaling"]) == 4
    assert results["closed_loop"]["kaggle"]["jobs"] == 10_000


def test_planted_study_reaches_its_bars(text: str) -> None:
    assert "Reached in the paper set-up" in text
    assert "MFU: reached, mean AUC loss +0.4" in text
    assert "priority < random < vanilla holds." in text
    assert "random < vanilla: resolved" in text
    assert "Kaggle, MFU: reached, 0.340 % against a goal of at most 0.35 %." in text
    assert "Kaggle, SSU: missed, 0.360 %" in text
    assert "Terabyte, MFU: not measured" in text
    assert "| kaggle | any | MFU | 0.53 % | 0.340 % |" in text
    assert "| terabyte | any | SSU | 0.68 % | not measured |" in text
    assert "**it replaces PLS.**" in text
    assert "MFU r = 0.125 (4.00 MB): loses less than a delta of as many bytes." in text
    assert "exceeds a PLS of 0.1 in 35.2 % [34.2, 36.2] of 10,000 simulated jobs" in text
    assert "keeps the chosen probability in 1 of 2 cases" in text


def test_nothing_is_claimed_where_vanilla_loses_nothing(results: dict[str, Any]) -> None:
    unseen = copy.deepcopy(results)
    unseen["bars"]["sensitivity"]["paper"] |= {"passed": False}
    unseen["bars"]["claims"] = False
    text = page.render(unseen)
    assert "**no claim is made**" in text
    assert "MFU: no claim" in text
    assert "random < vanilla: no claim" in text
    assert "The ranking is not claimed." in text
    assert ": reached, mean AUC loss" not in text


@pytest.mark.parametrize(("void", "words"), [(True, "**void**"), (None, "was not computed")])
def test_void_cells_claim_no_ranking(results: dict[str, Any], void: bool | None, words: str) -> None:
    changed = copy.deepcopy(results)
    changed["bars"]["void"] = void
    text = page.render(changed)
    assert words in text
    assert "random < vanilla: no claim" in text
    assert "vanilla holds" not in text


def test_void_of_the_stress_set_up_is_that_of_its_rows_touched(tmp_path: Path) -> None:
    extra = copy.deepcopy(EXTRA)
    extra["touched"]["quality"]["stress"] |= {"ratio": 1.9, "void": True}
    records = write_all(tmp_path, seeds=3)
    assert collect(records, extra)["bars"]["void"] is True
    assert collect(records, {})["bars"]["void"] is None


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_a_small_study_has_a_page_and_claims_nothing(tmp_path: Path, seeds: int) -> None:
    records = write_all(tmp_path / "records", seeds) if seeds else Records(tmp_path / "records")
    write_results(records, tmp_path, {})
    text = (tmp_path / "results" / "cpr.md").read_text(encoding="utf-8")
    assert "0 seeds are too few" in text or f"{seeds} seeds are too few" in text
    assert "it replaces PLS" not in text
    assert "vanilla holds" not in text
    assert ("Reached in the" in text) == (seeds == 3)


def test_a_missing_figure_is_an_error(results: dict[str, Any]) -> None:
    broken = copy.deepcopy(results)
    del broken["table"][1]["seeds"]
    with pytest.raises(jinja2.UndefinedError, match="seeds"):
        page.render(broken)


def test_a_figure_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"a": float("nan")})


def test_figures_have_six_digits_and_lists_one_line() -> None:
    assert (
        encode({"a": [1.23456789, 2.0], "b": {"c": None}})
        == '{\n "a": [1.23457, 2],\n "b": {\n  "c": null\n }\n}\n'
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "reached"}, r"reached, mean AUC loss \+1.00 e-4, at most \+1.50 e-4"),
        ({"verdict": "missed"}, "missed"),
        ({"verdict": "undecided", "seeds_needed": 120}, "not resolved, .* it would take about 120 seeds"),
        ({"verdict": "undecided", "seeds_needed": None}, "more than 10,000 seeds"),
        ({"upper95": None}, "not decided, 40 seed"),
    ],
)
def test_sentence_of_non_inferiority(change: dict[str, Any], words: str) -> None:
    bar = {
        "policy": "mfu",
        "margin": 2e-4,
        "mean": 1e-4,
        "upper95": 1.5e-4,
        "seeds": 40,
        "seeds_needed": None,
        **change,
    }
    assert re.search(words, sentences.non_inferiority_bar(bar, True))


def test_sentence_of_a_ranking_that_is_measured_the_other_way_round() -> None:
    bar = {
        "lower": "mfu", "higher": "random", "mean": -1e-4, "ci95": [-2e-4, 0.0], "p_holm": 1.0, "seeds": 16,
        "resolved": False, "wrong_way": True, "seeds_needed": None,
    }  # fmt: skip
    assert "measured the other way round" in sentences.ranking_bar(bar, True)


def test_sentence_of_the_budget_sorts_by_what_was_found() -> None:
    def entry(fraction: float, low: float, high: float) -> dict[str, Any]:
        middle = (low + high) / 2
        found = {"difference": middle, "ci95": [low, high], "place": "between"}
        return {"policy": "mfu", "fraction": fraction, "bytes_written": 1e6, **found}

    cheaper = {
        "policy": "ssu",
        "fraction": 0.5,
        "bytes_written": 1e6,
        "difference": None,
        "ci95": None,
        "place": "cheaper",
    }
    said = sentences.budget_text(
        [entry(0.5, 1, 2), entry(0.25, -1, 1), entry(0.125, -2, -1), cheaper]
    ).splitlines()
    assert [line.split(":")[0] for line in said] == [
        "- MFU r = 0.5 (1.00 MB)", "- MFU r = 0.125 (1.00 MB)",
        "- MFU r = 0.25 (1.00 MB)", "- SSU r = 0.5 (1.00 MB)",
    ]  # fmt: skip
    assert ["less than a delta" in said[0], "more than a delta" in said[1], "not resolved" in said[2]] == [
        True
    ] * 3
