"""The plots of the report as inline SVG, readable without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from cpr_native.emulate.results import PARTS, RunResult
from cpr_native.emulate.style import (
    FILLS,
    GRID,
    HATCHES,
    RC,
    SAVE_MARKS,
    Series,
    strategies_on_y,
    svg,
)

_MOST_LABELS = 5


def overhead_chart(runs: Sequence[RunResult], total_hours: float) -> str:
    """Stacked bars: overhead of every run in percent of the job, split into its four parts."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 1.3 + 0.5 * len(runs)), layout="constrained")
        axes = figure.subplots()
        left = [0.0] * len(runs)
        for part in PARTS:
            widths = [100.0 * getattr(run.overhead_hours, part) / total_hours for run in runs]
            axes.barh(
                range(len(runs)), widths, left=left, height=0.62, color=FILLS[part], label=part,
                hatch=HATCHES[part], edgecolor="black", linewidth=0.7,
            )  # fmt: skip
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for row, run in enumerate(runs):
            axes.annotate(
                f"{run.overhead_percent:.2f} %", (left[row], row), xytext=(6, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xlim(0, max([*left, 0.1]) * 1.14)
        strategies_on_y(axes, [run.strategy for run in runs])
        axes.set_xlabel("overhead, % of the job's hours")
        axes.grid(axis="x", color=GRID)
        figure.legend(loc="outside upper center", ncols=len(PARTS), frameon=False)
        return svg(figure)


def quality_chart(runs: Sequence[RunResult], reference: RunResult) -> str:
    """Dots: AUC and log loss of every run minus those of `reference`, in units of 0.0001."""
    with rc_context(RC):
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
                    f"{change:+.1f}",
                    (change, row),
                    xytext=(0, 7),
                    textcoords="offset points",
                    ha="center",
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
                )
            axes.set_xlim(-reach, reach)
            axes.set_ylim(-0.6, len(runs) - 0.2)
            title = "AUC" if name == "auc" else "log loss"
            axes.set_xlabel(f"{title} minus that of {reference.strategy}, in 0.0001 ({better} is better)")
            axes.grid(axis="x", color=GRID)
            strategies_on_y(axes, [run.strategy for run in runs])
        return svg(figure)


def pls_chart(
    runs: Sequence[RunResult], styles: Mapping[str, Series], target: float, total_hours: float
) -> str:
    """Steps: portion of lost samples of every run over the job, the expected one, and the budget `target`."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 3.8), layout="constrained")
        axes = figure.subplots()
        for run in runs:
            hours = [0.0, *(hour for hour, _ in run.pls_trace), total_hours]
            values = [0.0, *(pls for _, pls in run.pls_trace)]
            axes.step(
                hours, [*values, values[-1]], where="post", label=f"{run.strategy}: {values[-1]:.4f}",
                markevery=slice(1, -1), clip_on=False, **styles[run.strategy].lines(),
            )  # fmt: skip
        expectations = sorted({run.pls_expected for run in runs if run.pls_expected})
        for expected in expectations:
            names = ", ".join(run.strategy for run in runs if run.pls_expected == expected)
            text = f"expected ({names})" if len(expectations) > 1 else "expected"
            axes.plot([0.0, total_hours], [0.0, expected], color="#555555", linewidth=0.9)
            axes.annotate(
                text, (0.5 * total_hours, 0.5 * expected), xytext=(-4, 4),
                textcoords="offset points", ha="right", fontsize=8,
            )  # fmt: skip
        axes.axhline(target, color="black", linewidth=2.2, linestyle=(0, (8, 3)))
        axes.annotate(
            f"budget {target:g}", (0.0, target), xytext=(4, 4), textcoords="offset points", weight="bold"
        )
        highest = [pls for run in runs for _, pls in run.pls_trace] + [run.pls_expected for run in runs]
        axes.set_xlim(0, total_hours)
        axes.set_ylim(0, 1.18 * max([target, *highest]))
        axes.set_xlabel("hours of work")
        axes.set_ylabel("portion of lost samples")
        axes.grid(color=GRID)
        figure.legend(loc="outside right upper", frameon=False, title="at the end", handlelength=4)
        return svg(figure)


def timeline_chart(runs: Sequence[RunResult], total_hours: float) -> str:
    """One line per run: its saves by kind, and the failures it met."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 1.6 + 0.5 * len(runs)), layout="constrained")
        axes = figure.subplots()
        labelled: set[str] = set()

        def plot(hours: list[float], row: int, label: str, **style: Any) -> None:
            axes.plot(
                hours, [row] * len(hours), linestyle="none", label=None if label in labelled else label,
                **style,
            )  # fmt: skip
            labelled.add(label)

        for kind, (marker, size) in SAVE_MARKS.items():
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
                if len(run.failures) > _MOST_LABELS:
                    continue
                shards = ",".join(map(str, failure.shards))
                axes.annotate(
                    f"{failure.mode}, shard {shards}", (failure.hour, row), xytext=(0, 9),
                    textcoords="offset points", ha="center", fontsize=8,
                )  # fmt: skip
        axes.set_xlim(-0.01 * total_hours, 1.01 * total_hours)
        axes.set_ylim(-0.5, len(runs) - 0.3)
        strategies_on_y(axes, [run.strategy for run in runs])
        axes.set_xlabel("hours of work")
        if labelled:
            figure.legend(loc="outside upper center", ncols=4, frameon=False)
        return svg(figure)
