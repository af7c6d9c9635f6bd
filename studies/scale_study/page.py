"""docs/results/scale.md and its plot, from scale.json alone: `python -m scale_study.page [docs]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from study_common import pages

from scale_study import units

COLOURS = {"full": "#555555", "partial": "#1f77b4", "mfu": "#d62728"}


def write_page(results: Mapping[str, Any], docs: Path) -> None:
    """Write results/scale.md and results/plots/scale_shards.svg below `docs`; OSError.

    Raises jinja2.UndefinedError for a figure that is missing.
    """
    panels = {"shards": (_panel(results, "overhead_percent", "overhead, %"), _panel(results, "pls", "PLS"))}
    pages.write_page(render(results), panels, docs, "scale")


def render(results: Mapping[str, Any]) -> str:
    """Return the page's text; raises jinja2.UndefinedError for a figure that is missing."""
    cells = {(cell["shards"], cell["strategy"]): cell for cell in results["cells"]}
    counts = sorted({shards for shards, _ in cells})
    return pages.render(
        Path(__file__).with_name("scale.md.in"), results, units, found=cells, counts=counts, units=units,
        strategies=units.STRATEGIES,
    )  # fmt: skip


def _panel(results: Mapping[str, Any], what: str, label: str) -> pages.Draw:
    def draw(axes: Axes) -> None:
        for strategy in units.STRATEGIES:
            cells = [cell for cell in results["cells"] if cell["strategy"] == strategy]
            if what == "pls" and strategy == "full":
                continue
            shards = [cell["shards"] for cell in cells]
            axes.plot(
                shards, [c[what]["mean"] for c in cells], marker="o", label=strategy, color=COLOURS[strategy]
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("shards")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return draw


if __name__ == "__main__":
    pages.page_again(write_page, "scale", sys.argv[1:])
