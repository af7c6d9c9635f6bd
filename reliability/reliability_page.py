"""Write docs/reliability.md from docs/results/reliability.json: `python reliability/reliability_page.py`.

`make reliability` writes the counts; the words around them are in `reliability/reliability.md.in`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS = DOCS / "results" / "reliability.json"
PAGE = DOCS / "reliability.md"


def load(path: Path = RESULTS) -> dict[str, Any]:
    """Return the counts of all campaigns; raises OSError where they are missing."""
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def render(results: dict[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a count that is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["count"] = lambda value: f"{int(value):,}"
    return environment.get_template("reliability.md.in").render(**results)


if __name__ == "__main__":
    PAGE.write_text(render(load()), encoding="utf-8")
