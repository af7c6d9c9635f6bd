"""docs/results/scar.md and its plots, from scar.json alone: `python -m scar_study.page [docs]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from scar_study import sentences
from scar_study.analysis import find
from scar_study.arms import LOST, POLICIES
from scar_study.plots import draw, plots


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write results/scar.md and results/plots/scar_*.svg below `docs`; OSError where a file can't be written.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    text = render(results)
    folder = docs / "results"
    for old in (folder / "plots").glob("scar_*.svg"):
        old.unlink()
    draw(results, folder / "plots")
    (folder / "scar.md").write_text(text, encoding="utf-8")


def render(results: Mapping[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a figure that is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    says = {name: getattr(sentences, name) for name in dir(sentences) if not name.startswith("_")}

    def row(name: str, **wanted: Any) -> dict[str, Any] | None:
        return find(results["table"], results["workloads"][name], **wanted)

    template = environment.get_template("scar.md.in")
    shares = [(lost, sentences.PARTS[lost]) for lost in LOST]
    return template.render(
        **results, say=says, row=row, shares=shares, policies=POLICIES, drawn=list(plots(results))
    )


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_page(json.loads((place / "results" / "scar.json").read_text(encoding="utf-8")), place)
