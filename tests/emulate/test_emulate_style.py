"""Nothing on the page is told by colour alone, and all text stands out."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from cpr_native.emulate import style
from cpr_native.emulate.results import PARTS
from cpr_native.emulate.settings import STRATEGIES


def luminance(colour: str) -> float:
    """Of "#rgb" or "#rrggbb", by WCAG 2.2."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_no_two_strategies_have_the_same_marker() -> None:
    names = [f"s{index}" for index in range(28)]
    styles = style.series_of(names)
    assert len({(series.marker, series.filled) for series in styles.values()}) == len(names)
    few = style.series_of(STRATEGIES)
    assert len({series.marker for series in few.values()}) == len(STRATEGIES)
    assert all(contrast(series.colour, "#fff") >= 3 for series in styles.values())
    with pytest.raises(ValueError, match="at most 28 strategies can be told apart, got 29"):
        style.series_of([*names, "one more"])


def test_bars_differ_by_hatch_and_hatches_show() -> None:
    for fills, hatches in ((style.FILLS, style.HATCHES), (style.GROUP_FILLS, style.GROUP_HATCHES)):
        assert len(set(hatches.values())) == len(hatches) == len(fills)
        assert all(contrast("#000000", fill) >= 3 for fill in fills.values())
    assert set(style.HATCHES) == set(PARTS)


def test_saves_differ_by_marker() -> None:
    assert len({marker for marker, _ in style.SAVE_MARKS.values()}) == len(style.SAVE_MARKS)


def test_text_stands_out() -> None:
    page = (resources.files("cpr_native.emulate") / "templates" / "report.html.j2").read_text("utf-8")
    sheet = page[page.index("<style>") : page.index("</style>")]
    colours = re.findall(r"[{;\s]color: (#[0-9a-f]+)", sheet)
    assert len(colours) >= 4
    assert all(contrast(colour, "#fff") >= 4.5 for colour in colours)
    assert re.findall(r"background: (\S+?);", sheet) == ["#fff"] * sheet.count("background")
