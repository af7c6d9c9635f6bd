"""docs/performance.md is what its generator makes of the result files, with nothing typed in between."""

from __future__ import annotations

import copy
from typing import Any

import jinja2
import performance_page as page
import pytest

RESULTS = page.load(page.RESULTS)


def test_page_is_that_of_the_results() -> None:
    assert page.render(RESULTS) == (page.DOCS / "performance.md").read_text(encoding="utf-8")


def test_both_files_are_of_one_machine() -> None:
    assert RESULTS["engine"]["machine"] == RESULTS["snapshot"]["machine"]


def test_plots_of_the_page_are_there() -> None:
    for name in ("ratios", "snapshot_steps"):
        assert (page.DOCS / "plots" / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")


def changed(*path: str, value: Any) -> dict[str, Any]:
    results = copy.deepcopy(RESULTS)
    place = results
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return results


def test_a_figure_appears_where_it_belongs() -> None:
    assert "| 98765 |" not in page.render(RESULTS)
    assert "| 98765 |" in page.render(changed("engine", "S3", "vs_fbgemm", value=98765.0))


@pytest.mark.parametrize("name", ["step_ms", "floor_share"])
def test_missing_figure_is_an_error(name: str) -> None:
    results = copy.deepcopy(RESULTS)
    del results["engine"]["S4"][name]
    with pytest.raises(jinja2.UndefinedError, match=name):
        page.render(results)


@pytest.mark.parametrize(
    ("path", "reached", "missed"),
    [
        (("snapshot", "commit_vs_raw"), 0.9, 0.899),
        (("snapshot", "step_p95_ratio"), 1.25, 1.251),
        (("engine", "S2", "tracking_cost"), 0.03, 0.031),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_goals_are_judged_by_the_figures(path: tuple[str, ...], reached: float, missed: float) -> None:
    """The bound itself counts as reached; the page says no beyond it."""
    unreached = [
        sum(not goal["ok"] for goal in page.goals(changed(*path, value=value))) for value in (reached, missed)
    ]
    assert unreached[1] == unreached[0] + 1
