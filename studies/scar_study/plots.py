"""The plots of docs/results/scar.md: the same figures give the same bytes, and shapes say what colours do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from study_common.pages import Draw, Results

from scar_study.analysis import KEYS
from scar_study.sentences import PARTS, named, titled

_STYLES = {
    "priority": ("P", "-", "#8e5bb5"), "traditional": ("o", "--", "#1f6fb2"), "random": ("v", ":", "#999999"),
    "round_robin": ("<", ":", "#bbbbbb"), "drift": ("*", "-", "#b5483a"),
}  # fmt: skip
_KINDS = {"random": ("o", "#1f6fb2"), "adversarial": ("^", "#b5483a"), "reset": ("s", "#3a8f4f")}


def plots(results: Results) -> dict[str, list[Draw]]:
    """Return the panels of every plot, by its name."""
    found: dict[str, list[Draw]] = {}
    lost = [
        share
        for share in PARTS
        if any(r["part"] == "main" and r["lost"] == share and not r["variant"] for r in results["table"])
    ]
    if lost:
        found["reduction"] = [_bind(reductions, results, share) for share in lost]
    fractions = [r for r in results["table"] if r["part"] == "fraction"]
    if fractions:
        found["fraction"] = [_bind(by_fraction, results)]
    if results["bound"]:
        found["bound"] = [
            _bind(bounded, figures, titled(results["workloads"][name]))
            for name, figures in results["bound"].items()
        ]
    if results["workloads"]:
        found["runs"] = [_bind(objectives, results)]
    return found


def _bind(plot: Callable[..., None], *arguments: Any) -> Draw:
    return lambda axes: plot(axes, *arguments)


def _style(policy: str) -> dict[str, Any]:
    marker, line, colour = _STYLES[policy]
    return {"marker": marker, "linestyle": line, "color": colour, "label": named(policy)}


def reductions(axes: Axes, results: Results, lost: float) -> None:
    """Draw every workload's reductions at a share lost, before the published ranges."""
    names = [name for name, about in results["workloads"].items() if not about["variant"]]
    published = results["published"]
    axes.axvspan(*published["priority"], color="#8e5bb5", alpha=0.12, linewidth=0)
    axes.axvspan(*published["traditional"][f"{lost:g}"], color="#1f6fb2", alpha=0.12, linewidth=0)
    for shift, policy in enumerate(("priority", "traditional", "round_robin", "random")):
        rows = [_main(results, name, policy, lost) for name in names]
        places = [len(names) - place - 0.17 * shift for place, row in enumerate(rows) if row]
        style = _style(policy) | {"linestyle": "none", "capsize": 2}
        values = [max(row["reduction_percent"], -50.0) for row in rows if row]
        axes.errorbar(values, places, xerr=_errors([row for row in rows if row], values), **style)
    axes.set_yticks(
        [len(names) - n - 0.25 for n in range(len(names))], [titled(results["workloads"][n]) for n in names]
    )
    axes.set_xlim(-55, 135)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("iteration cost saved, % of full recovery, 95 %")
    axes.set_title(f"{PARTS[lost]} lost (bands: published)")
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _main(results: Results, name: str, policy: str, lost: float) -> Results | None:
    about = results["workloads"][name]
    for row in results["table"]:
        same = all(row[key] == about[key] for key in KEYS)
        if same and (row["part"], row["policy"], row["lost"]) == ("main", policy, lost) and row["ci95"]:
            return dict(row)
    return None


def _errors(rows: Sequence[Results], values: Sequence[float]) -> list[list[float]]:
    return [
        [max(0.0, v - max(row["ci95"][0], -50.0)) for row, v in zip(rows, values, strict=True)],
        [max(0.0, row["ci95"][1] - v) for row, v in zip(rows, values, strict=True)],
    ]


def by_fraction(axes: Axes, results: Results) -> None:
    """Draw the mean reduction over the workloads by the fraction that a save takes."""
    for policy in ("priority", "round_robin", "random"):
        own: dict[float, list[float]] = {}
        for row in results["table"]:
            at_half = row["policy"] == policy and row["lost"] == 0.5 and row["reduction_percent"] is not None
            if row["variant"]:
                continue
            if at_half and row["part"] in ("fraction", "main"):
                own.setdefault(row["fraction"], []).append(row["reduction_percent"])
        points = sorted((fraction, sum(values) / len(values)) for fraction, values in own.items())
        axes.plot([x for x, _ in points], [y for _, y in points], **_style(policy))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("fraction r that a save takes, 1/2 lost (C = 16; 1/16: 32)")
    axes.set_ylabel("iteration cost saved, %, mean of the workloads")
    axes.legend(frameon=False)


def bounded(axes: Axes, figures: Results, title: str) -> None:
    """Draw the cost of each perturbation over its relative size, and the bound."""
    points = figures["points"]
    for kind, (marker, colour) in _KINDS.items():
        own = [point for point in points if point["kind"] == kind and point["cost"] is not None]
        x, y = [point["relative"] for point in own], [point["cost"] for point in own]
        axes.plot(x, y, marker, color=colour, markerfacecolor="none", label=kind)
    line = sorted((point["relative"], point["bound"]) for point in points)
    axes.plot([x for x, _ in line], [y for _, y in line], "-", color="black", label="bound")
    axes.set_xscale("log")
    axes.set_xlabel("perturbation / distance from the optimum")
    axes.set_ylabel("iteration cost")
    axes.set_title(title)
    axes.legend(frameon=False)


def objectives(axes: Axes, results: Results) -> None:
    """Draw how far each run without failures has come, in parts of its way."""
    lines = ("-", "--", "-.", ":")
    abouts = [about for about in results["workloads"].values() if not about["variant"]]
    for number, about in enumerate(abouts):
        values = about["objective"]
        way = [(value - values[-1]) / (values[0] - values[-1]) for value in values[:-1]]
        axes.plot(way, lines[number % 4], color=str(0.15 * (number // 2)), label=titled(about))
    axes.set_yscale("log")
    axes.set_ylim(1e-5, 1.5)
    axes.set_xlabel("iteration")
    axes.set_ylabel("part of the way to the target left")
    axes.legend(frameon=False, fontsize=7)
