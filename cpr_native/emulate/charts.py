"""The plots of the report as inline SVG, readable without colour."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from cpr_native.emulate.results import PARTS, RunResult

_FILLS = {"save": "#56b4e9", "load": "#f0e442", "lost": "#d55e00", "reschedule": "#cccccc"}
_HATCHES = {"save": "///", "load": "...", "lost": "xx", "reschedule": ""}
_LINES: tuple[tuple[str, str, Any], ...] = (
    ("#000000", "o", "-"),
    ("#0072b2", "s", (0, (6, 2))),
    ("#d55e00", "^", (0, (2, 1.5))),
    ("#009e73", "D", (0, (6, 2, 1, 2))),
    ("#cc79a7", "v", (0, (1, 1))),
)
_SAVE_MARKS = {"base": ("s", 7.0), "delta": ("^", 6.5), "priority": ("|", 9.0)}
_STYLE: Any = {
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


def overhead_chart(runs: Sequence[RunResult], total_hours: float) -> str:
    """Stacked bars: overhead of every run in percent of the job, split into its four parts."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 1.3 + 0.5 * len(runs)), layout="constrained")
        axes = figure.subplots()
        left = [0.0] * len(runs)
        for part in PARTS:
            widths = [100.0 * getattr(run.overhead_hours, part) / total_hours for run in runs]
            axes.barh(
                range(len(runs)), widths, left=left, height=0.62, color=_FILLS[part], label=part,
                hatch=_HATCHES[part], edgecolor="black", linewidth=0.7,
            )  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for row, run in enumerate(runs):
            axes.annotate(
                f"{run.overhead_percent:.2f} %", (left[row], row), xytext=(6, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xlim(0, max([*left, 0.1]) * 1.14)
        _rows_of_strategies(axes, runs)
        axes.set_xlabel("overhead, % of the job's hours")
        axes.grid(axis="x", color="#dddddd")
        figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
        return _svg(figure)


def quality_chart(runs: Sequence[RunResult], reference: RunResult) -> str:
    """Dots: AUC and log loss of every run minus those of `reference`, in units of 0.0001."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 1.1 + 0.42 * len(runs)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name, better in ((panels[0], "auc", "right"), (panels[1], "logloss", "left")):
            base = float(getattr(reference, name))
            changes = [1e4 * (float(getattr(run, name)) - base) for run in runs]
            reach = max(max(map(abs, changes), default=0.0), 1.0) * 1.35
            axes.axvline(0.0, color="black", linewidth=1.0)
            axes.hlines(range(len(runs)), 0.0, changes, color="black", linewidth=1.5)
            axes.plot(changes, range(len(runs)), "o", color="#0072b2", markeredgecolor="black")
            for row, change in enumerate(changes):
                axes.annotate(
                    f"{change:+.1f}", (change, row), xytext=(0, 7), textcoords="offset points", ha="center"
                )
            axes.set_xlim(-reach, reach)
            axes.set_ylim(-0.6, len(runs) - 0.2)
            title = "AUC" if name == "auc" else "log loss"
            axes.set_xlabel(f"{title} minus that of {reference.strategy}, in 0.0001 ({better} is better)")
            axes.grid(axis="x", color="#dddddd")
            _rows_of_strategies(axes, runs)
        return _svg(figure)


def pls_chart(runs: Sequence[RunResult], target: float, total_hours: float) -> str:
    """Steps: portion of lost samples of every run over the job against the budget `target`."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 3.4), layout="constrained")
        axes = figure.subplots()
        for index, run in enumerate(runs):
            colour, marker, line = _LINES[index % len(_LINES)]
            hours = [0.0, *(hour for hour, _ in run.pls_trace), total_hours]
            values = [0.0, *(pls for _, pls in run.pls_trace)]
            axes.step(
                hours, [*values, values[-1]], where="post", label=f"{run.strategy} ({values[-1]:.4f})",
                color=colour, linestyle=line, linewidth=1.6, marker=marker, markersize=6,
            )  # fmt: skip
        axes.axhline(target, color="black", linewidth=2.2, linestyle=(0, (8, 3)))
        axes.annotate(
            f"budget {target:g}", (0.0, target), xytext=(4, 4), textcoords="offset points", weight="bold"
        )
        axes.set_xlim(0, total_hours)
        axes.set_ylim(0, 1.18 * max([target, *(pls for run in runs for _, pls in run.pls_trace)]))
        axes.set_xlabel("hours of work")
        axes.set_ylabel("portion of lost samples")
        axes.grid(color="#dddddd")
        figure.legend(loc="outside right upper", frameon=False, title="strategy (at the end)", handlelength=4)
        return _svg(figure)


def timeline_chart(runs: Sequence[RunResult], total_hours: float) -> str:
    """One line per run: its saves by kind, and the failures it met."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 1.6 + 0.5 * len(runs)), layout="constrained")
        axes = figure.subplots()
        labelled: set[str] = set()

        def plot(hours: list[float], row: int, label: str, **style: Any) -> None:
            axes.plot(
                hours, [row] * len(hours), linestyle="none", label=None if label in labelled else label,
                **style,
            )  # fmt: skip
            labelled.add(label)

        for kind, (marker, size) in _SAVE_MARKS.items():
            for row, run in enumerate(runs):
                hours = [mark.hour for mark in run.saves if mark.kind == kind]
                if hours:
                    plot(
                        hours, row, f"save: {kind}", marker=marker, markersize=size,
                        markeredgecolor="black", color="#56b4e9", markeredgewidth=1.2,
                    )  # fmt: skip
        for row, run in enumerate(runs):
            axes.axhline(row, color="#999999", linewidth=0.8, zorder=1)
            for failure in run.failures:
                plot(
                    [failure.hour], row, "failure", marker="X", markersize=11, color="#d55e00",
                    markeredgecolor="black",
                )  # fmt: skip
                shards = ",".join(map(str, failure.shards))
                axes.annotate(
                    f"{failure.mode}, shard {shards}", (failure.hour, row), xytext=(0, 9),
                    textcoords="offset points", ha="center", fontsize=8,
                )  # fmt: skip
        axes.set_xlim(-0.01 * total_hours, 1.01 * total_hours)
        axes.set_ylim(-0.5, len(runs) - 0.3)
        _rows_of_strategies(axes, runs)
        axes.set_xlabel("hours of work")
        if labelled:
            figure.legend(loc="outside upper center", ncols=4, frameon=False)
        return _svg(figure)


def _rows_of_strategies(axes: Any, runs: Sequence[RunResult]) -> None:
    axes.set_yticks(range(len(runs)), [run.strategy for run in runs])
    if not axes.yaxis_inverted():
        axes.invert_yaxis()


def _svg(figure: Figure) -> str:
    """The figure as an SVG element for HTML: no prolog, no metadata, no namespace declarations."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
