"""docs/reliability.md is what its generator makes of the counts, and these keep the promise at its top."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import jinja2
import pytest
import reliability_page as page
from campaigns.command import BAD
from campaigns.everything import CAMPAIGNS, failures

RESULTS = page.load()
ROOT = Path(__file__).resolve().parent.parent


def test_page_is_that_of_the_results() -> None:
    assert page.render(RESULTS) == page.PAGE.read_text(encoding="utf-8")


def test_all_campaigns_were_run_and_found_nothing() -> None:
    assert RESULTS.keys() == CAMPAIGNS.keys()
    for name, campaign in CAMPAIGNS.items():
        assert RESULTS[name]["command"] == " ".join(campaign.command(small=False))
        assert set(BAD) & set(RESULTS[name]), name
    assert failures(RESULTS) == []


def test_a_campaign_that_found_something_is_told() -> None:
    results = copy.deepcopy(RESULTS)
    results["kills"]["lost"] = 2
    assert failures(results) == ["kills: lost 2"]
    assert "2 lost" in page.render(results)


@pytest.mark.parametrize(("name", "count"), [("kills", "tried"), ("soak", "faults"), ("fuzz", "crashes")])
def test_missing_count_is_an_error(name: str, count: str) -> None:
    results = copy.deepcopy(RESULTS)
    del results[name][count]
    with pytest.raises(jinja2.UndefinedError, match=count):
        page.render(results)


def test_named_files_of_tests_exist() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    for name in set(re.findall(r"`(test_\w+\.py)`", text)):
        assert list((ROOT / "tests").rglob(name)), name
