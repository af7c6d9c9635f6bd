"""The plots of the report about rows: how often they were saved, how old they were at failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cpr_native.emulate.results import RunResult
from cpr_native.emulate.row_statistics import Distribution, Weight, age_of, pooled_age_of, saved_of
from cpr_native.emulate.rows import Group, RowsSaved
from cpr_native.emulate.style import GRID, GROUP_FILLS, GROUP_HATCHES, RC, Series, svg

_BARS = 40
_GROUPS: tuple[Group, ...] = ("prioritised", "small")
_WEIGHTS: tuple[Weight, ...] = ("rows", "lookups")


def saved_chart(runs: Sequence[RunResult]) -> str:
    """Bars: share of the rows of each group of tables by the number of times saved, a run a line."""
    groups = [group for group in _GROUPS if any(p.group == group for run in runs for p in run.rows_saved)]
    most = max(time for run in runs for part in run.rows_saved for time in part.times)
    width = math.ceil((most + 1) / _BARS)
    edges = np.arange(0, most + 1 + width, width) - 0.5
    with rc_context(RC):
        figure = Figure(
            figsize=(9.0, 0.9 + (0.95 if len(runs) < 7 else 0.7) * len(runs)), layout="constrained"
        )
        panels: NDArray[Any] = figure.subplots(
            len(runs), len(groups), sharex=True, sharey=True, squeeze=False
        )
        for row, run in enumerate(runs):
            parts = {part.group: part for part in run.rows_saved}
            for axes, group in zip(panels[row], groups, strict=True):
                part = parts.get(group, RowsSaved(group=group, tables=0, times=(), rows=(), lookups=()))
                shares, _ = np.histogram(part.times, edges, weights=part.rows)
                axes.bar(
                    edges[:-1] + width / 2, 100.0 * shares / max(sum(part.rows), 1), width=0.8 * width,
                    color=GROUP_FILLS[group], hatch=GROUP_HATCHES[group], edgecolor="black", linewidth=0.7,
                )  # fmt: skip
                axes.set_ylim(0, 118)
                axes.set_yticks([0, 50, 100])
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                axes.grid(axis="y", color=GRID)
                if row == 0:
                    total = sum(part.rows)
                    axes.set_title(f"{group} tables: {part.tables}, {total:,} rows", fontsize=10)
            panels[row][0].set_ylabel(run.strategy, rotation=0, ha="right", va="center", labelpad=8)
        figure.supxlabel("times saved", fontsize=10)
        figure.supylabel("% of the group's rows", fontsize=10)
        return svg(figure)


def coverage_chart(runs: Sequence[RunResult], styles: Mapping[str, Series]) -> str:
    """Lines: share of the rows, and of the lookups, that rows saved at least k times hold."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        most = max(int(saved_of(run, "rows").highest) for run in runs)
        for axes, weight in zip(panels, _WEIGHTS, strict=True):
            for run in runs:
                spread = saved_of(run, weight)
                times = np.arange(1, spread.highest + 2)
                axes.plot(
                    times, [100.0 * spread.at_least(k) for k in times], label=run.strategy,
                    markevery=max(1, most // 12), **styles[run.strategy].lines(),
                )  # fmt: skip
            if most > _BARS:
                axes.set_xscale("log")
            else:
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(-2, 105)
            axes.set_xlabel("k: times saved")
            axes.set_title(f"% of {weight}: rows saved k times or more", fontsize=10)
            axes.grid(color=GRID)
        _legend(figure, panels[0], len(runs))
        return svg(figure)


def age_chart(runs: Sequence[RunResult], styles: Mapping[str, Series]) -> str:
    """Steps: share of the rows that went back at any failure that were at most so old."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, sharex=True)
        spreads: dict[Weight, list[tuple[RunResult, Distribution]]] = {
            weight: [(run, pooled_age_of(run, weight)) for run in runs] for weight in _WEIGHTS
        }
        oldest = max(spread.highest for part in spreads.values() for _, spread in part)
        reach = 1.04 * max(oldest, 1e-9)
        for axes, (weight, part) in zip(panels, spreads.items(), strict=True):
            for run, spread in part:
                ages = [0.0, *map(float, spread.values), reach]
                shares = [0.0, *(100.0 * spread.cumulative), 100.0]
                marked = slice(1, -1, max(1, len(ages) // 10))
                style = styles[run.strategy].lines()
                axes.step(ages, shares, where="post", label=run.strategy, markevery=marked, **style)
            axes.set_xlim(0, reach)
            axes.set_ylim(-2, 105)
            axes.set_xlabel("age, hours")
            axes.set_title(f"% of {weight}: rows at most so old", fontsize=10)
            axes.grid(color=GRID)
        _legend(figure, panels[0], len(runs))
        return svg(figure)


def age_of_failures_chart(runs: Sequence[RunResult], styles: Mapping[str, Series], total_hours: float) -> str:
    """Points: mean age of the rows that went back at each failure."""
    with rc_context(RC):
        figure = Figure(figsize=(9.0, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, weight in zip(panels, _WEIGHTS, strict=True):
            for run in runs:
                hours = [failure.hour for failure in run.failures]
                means = [age_of(failure, weight).mean for failure in run.failures]
                axes.plot(
                    hours, means, label=run.strategy,
                    **{**styles[run.strategy].lines(), "linewidth": 0.8},
                )  # fmt: skip
            axes.set_xlim(0, total_hours)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("hour of the failure")
            axes.set_title(f"mean age in hours, weighted by {weight}", fontsize=10)
            axes.grid(color=GRID)
        _legend(figure, panels[0], len(runs))
        return svg(figure)


def _legend(figure: Figure, axes: Any, runs: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=runs if runs < 6 else 4,
        frameon=False,
        handlelength=4,
    )
