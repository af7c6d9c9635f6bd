"""docs/results/cpr.md and its plots, from docs/results/cpr.json alone: `python -m cpr_study.page [docs]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study_common import pages

from cpr_study import sentences
from cpr_study.plots import plots
from cpr_study.quality import BY_BYTES
from cpr_study.sensitivity import VARIED


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write results/cpr.md and results/plots/cpr_*.svg below `docs`; OSError where a file can't be written.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    pages.write_page(render(results), plots(results), docs, "cpr")


def render(results: Mapping[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a figure that is missing."""
    overheads: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in results["table"]:
        overheads.setdefault((row["config"], row["policy"]), row)
    return pages.render(
        Path(__file__).with_name("cpr.md.in"), results, sentences, varied=VARIED, drawn=list(plots(results)),
        by_bytes=BY_BYTES, overheads=list(overheads.values()),
    )  # fmt: skip


if __name__ == "__main__":
    pages.page_again(write_page, "cpr", sys.argv[1:])
