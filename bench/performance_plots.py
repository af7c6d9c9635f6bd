"""The plots of docs/performance.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIDES = {
    "FBGEMM, step": "vs_fbgemm",
    "FBGEMM, lookup alone": "vs_fbgemm_forward",
    "torch with Adagrad, step": "vs_torch_adagrad",
}
COLOURS = ("#1f6fb2", "#8fbfe0", "#d98b2b")
_SETTINGS = {
    "svg.hashsalt": "cpr_native",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(results: Mapping[str, Any], folder: Path, goals: Mapping[str, Mapping[str, float]]) -> None:
    """Write `ratios.svg` and `snapshot_steps.svg` to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_SETTINGS):
        for name, plot in (
            ("ratios", lambda axes: ratios(axes, results["engine"], goals)),
            ("snapshot_steps", lambda axes: snapshot_steps(axes, results["snapshot"]["step_trace_ms"])),
        ):
            figure = Figure(figsize=(8.0, 4.0), layout="constrained")
            plot(figure.subplots())
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def ratios(axes: Axes, engine: Mapping[str, Any], goals: Mapping[str, Mapping[str, float]]) -> None:
    """Draw how many times faster than each yardstick every shape is."""
    shapes = [name for name in engine if name.startswith("S")]
    width = 0.8 / len(SIDES)
    for number, (side, key) in enumerate(SIDES.items()):
        places = [place for place, shape in enumerate(shapes) if key in engine[shape]]
        heights = [engine[shapes[place]][key] for place in places]
        left = [place + (number - 1) * width for place in places]
        bars = axes.bar(left, heights, width, label=f"against {side}", color=COLOURS[number])
        axes.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
        for place in places:
            goal = goals.get(side, {}).get(shapes[place])
            if goal is not None:
                at = place + (number - 1) * width
                axes.hlines(goal, at - width / 2, at + width / 2, color="black", linewidth=1.5)
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(shapes)), shapes)
    axes.set_ylabel("times faster")
    axes.set_title("Throughput against each yardstick (black: the goal)")
    axes.margins(y=0.1)
    axes.legend(frameon=False, ncols=len(SIDES), loc="upper center", bbox_to_anchor=(0.5, -0.1))


def snapshot_steps(axes: Axes, trace: Mapping[str, list[float]]) -> None:
    """Draw the step times before, during and after one snapshot, in order."""
    start = 0
    for name, colour in (("before", "#8fbfe0"), ("during", "#d98b2b"), ("after", "#8fbfe0")):
        steps = trace[name]
        label = {"during": "during the snapshot", "before": "without"}.get(name)
        axes.plot(range(start, start + len(steps)), steps, ".", markersize=4, color=colour, label=label)
        start += len(steps)
    begin = len(trace["before"])
    axes.axvspan(begin - 0.5, begin + len(trace["during"]) - 0.5, color="#d98b2b", alpha=0.1, linewidth=0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("step")
    axes.set_ylabel("ms")
    axes.set_title("Step time of the demo's DLRM over 33.8M rows, batch 2048")
    axes.legend(frameon=False)
