"""docs/results/scar.md and its plots, from scar.json alone: `python -m scar_study.page [docs]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from study_common import pages

from scar_study import sentences
from scar_study.analysis import find
from scar_study.arms import LOST, POLICIES
from scar_study.plots import plots


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write results/scar.md and results/plots/scar_*.svg below `docs`; OSError where a file can't be written.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    pages.write_page(render(results), plots(results), docs, "scar")


def render(results: Mapping[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a figure that is missing."""

    def row(name: str, **wanted: Any) -> dict[str, Any] | None:
        return find(results["table"], results["workloads"][name], **wanted)

    return pages.render(
        Path(__file__).with_name("scar.md.in"), results, sentences, row=row, policies=POLICIES,
        shares=[(lost, sentences.PARTS[lost]) for lost in LOST], drawn=list(plots(results)),
    )  # fmt: skip


if __name__ == "__main__":
    pages.page_again(write_page, "scar", sys.argv[1:])
