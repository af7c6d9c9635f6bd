"""What plots look like: readable without colour, the same strategy with the same marker in every plot."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

FILLS = {"save": "#56b4e9", "load": "#f0e442", "lost": "#d55e00", "reschedule": "#cccccc"}
HATCHES = {"save": "///", "load": "...", "lost": "xx", "reschedule": ""}
GROUP_FILLS = {"prioritised": "#56b4e9", "small": "#f0e442"}
GROUP_HATCHES = {"prioritised": "///", "small": "..."}
SAVE_MARKS = {"base": ("s", 7.0), "delta": ("^", 6.5), "priority": ("|", 9.0)}
GRID = "#dddddd"
RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cpr-native",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 10.0,
    "hatch.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "8")
_LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1, 2)), (0, (1, 1)))
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#a0527d")


@dataclass(frozen=True, kw_only=True)
class Series:
    """How the points and lines of one strategy are drawn; no two have the same marker."""

    marker: str
    line: Any
    colour: str
    filled: bool

    def points(self) -> dict[str, Any]:
        """The style of the markers, for matplotlib's `plot`."""
        return {
            "marker": self.marker,
            "markersize": 7.0,
            "color": self.colour,
            "markeredgecolor": self.colour,
            "markerfacecolor": self.colour if self.filled else "none",
            "markeredgewidth": 1.5,
        }

    def lines(self) -> dict[str, Any]:
        """The style of markers and lines, for matplotlib's `plot` and `step`."""
        return {**self.points(), "linestyle": self.line, "linewidth": 1.6}


def series_of(strategies: Sequence[str]) -> dict[str, Series]:
    """A style for each of at most 28 strategies, by its place among them: no two share marker and filling.

    Raises:
        ValueError: there are more.
    """
    if len(strategies) > 2 * len(_MARKERS):
        raise ValueError(f"at most {2 * len(_MARKERS)} strategies can be told apart, got {len(strategies)}")
    return {
        strategy: Series(
            marker=_MARKERS[index % len(_MARKERS)],
            line=_LINES[index % len(_LINES)],
            colour=_COLOURS[index % len(_COLOURS)],
            filled=index >= len(_MARKERS),
        )
        for index, strategy in enumerate(strategies)
    }


def strategies_on_y(axes: Any, strategies: Sequence[str]) -> None:
    """Name the rows of `axes`, the first on top."""
    axes.set_yticks(range(len(strategies)), strategies)
    if not axes.yaxis_inverted():
        axes.invert_yaxis()


def svg(figure: Figure) -> str:
    """The figure as an SVG element for HTML: no prolog, no metadata, no namespace declarations."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
