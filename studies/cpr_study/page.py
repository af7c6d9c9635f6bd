"""docs/results/cpr.md and its plots, from docs/results/cpr.json alone: `python -m cpr_study.page [docs]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from cpr_study import sentences
from cpr_study.plots import draw, plots
from cpr_study.quality import BY_BYTES
from cpr_study.sensitivity import VARIED


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write results/cpr.md and results/plots/cpr_*.svg below `docs`; OSError where a file can't be written.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    text = render(results)
    folder = docs / "results"
    for old in (folder / "plots").glob("cpr_*.svg"):
        old.unlink()
    draw(results, folder / "plots")
    (folder / "cpr.md").write_text(text, encoding="utf-8")


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
    template = environment.get_template("cpr.md.in")
    overheads: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in results["table"]:
        overheads.setdefault((row["config"], row["policy"]), row)
    return template.render(
        **results, say=says, varied=VARIED, drawn=list(plots(results)), by_bytes=BY_BYTES,
        overheads=list(overheads.values()),
    )  # fmt: skip


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    write_page(json.loads((place / "results" / "cpr.json").read_text(encoding="utf-8")), place)
