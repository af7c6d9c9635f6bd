"""The plots of docs/results/cpr.md: the same figures give the same bytes, and shapes say what colours do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from study_common.pages import Draw, Results

from cpr_study.sensitivity import VARIED
from cpr_study.sentences import UNIT, named

_STYLES = {
    "partial": ("o", "-", "#1f6fb2"), "partial_small": ("X", "-", "#6aa5d8"),
    "delta_partial": ("s", "--", "#555555"),
    "random": ("v", ":", "#999999"), "round_robin": ("<", ":", "#bbbbbb"), "mfu": ("^", "--", "#d98b2b"),
    "ssu": ("D", "-.", "#3a8f4f"), "scar": ("P", ":", "#8e5bb5"), "drift": ("*", "-", "#b5483a"),
}  # fmt: skip
_OTHER = ("x", ":", "black")
_LAWS = {"constant": "one MTBF", "inverse": "MTBF inverse to shards"}


def plots(results: Results) -> dict[str, list[Draw]]:
    """Return the panels of every plot, by its name."""
    found: dict[str, list[Draw]] = {}
    for measure in ("progressive", "auc"):
        panels = [
            _bind(quality, results, setup, measure)
            for setup in results["setups"]
            if any(row["setup"] == setup and row[f"{measure}_ci95"] for row in results["table"])
        ]
        if panels:
            found[f"quality_{measure}"] = panels
    if results["tenths"]:
        found["tenths"] = [_bind(tenths, by, setup) for setup, by in results["tenths"].items()]
    for what, points in results["sensitivity"].items():
        found[f"sensitivity_{what}"] = [_bind(varied, what, points)]
    if results["scaling"]:
        found["scaling"] = [
            _bind(scaling_overhead, results["scaling"]),
            _bind(scaling_loss, results["scaling"]),
        ]
    if results["proxy"]:
        found["proxy"] = [_bind(proxies, results["proxy"])]
    if results["budget"]["points"]:
        found["budget"] = [_bind(budget, results["budget"]["points"])]
    if results["closed_loop"]:
        found["closed_loop"] = [
            _bind(closed_loop, study, name) for name, study in results["closed_loop"].items()
        ]
    return found


def _bind(plot: Callable[..., None], *arguments: Any) -> Draw:
    return lambda axes: plot(axes, *arguments)


def _style(policy: str) -> dict[str, Any]:
    marker, line, colour = _STYLES.get(policy, _OTHER)
    return {"marker": marker, "linestyle": line, "color": colour, "markersize": 6, "label": named(policy)}


def _errors(values: Sequence[float], intervals: Sequence[Sequence[float] | None]) -> list[list[float]] | None:
    if any(interval is None for interval in intervals):
        return None
    pairs = [(value, low, high) for value, (low, high) in zip(values, intervals, strict=True)]  # type: ignore[misc]
    return [
        [max(0.0, v - low) / UNIT for v, low, _ in pairs],
        [max(0.0, high - v) / UNIT for v, _, high in pairs],
    ]


def quality(axes: Axes, results: Results, setup: str, measure: str) -> None:
    """Draw each policy's difference to no failure with its interval."""
    rows = [row for row in results["table"] if row["setup"] == setup and row[f"{measure}_ci95"]]
    noise = results["noise"].get(setup)
    if noise and noise[f"{measure}_ci95"]:
        rows = [*rows, {"policy": "noise", **noise}]
    for place, row in enumerate(reversed(rows)):
        value, interval = row[f"{measure}_delta"], row[f"{measure}_ci95"]
        style = _style(row["policy"]) | {"label": None}
        axes.errorbar(value / UNIT, place, xerr=_horizontal(value, interval), capsize=3, **style)
    axes.set_yticks(range(len(rows)), [named(row["policy"]) for row in reversed(rows)])
    axes.axvline(0.0, color="black", linewidth=0.8)
    if measure == "auc":
        axes.axvline(-2.0, color="black", linewidth=0.8, linestyle="--")
    what = {"auc": "AUC (dashed: -2e-4)", "progressive": "progressive log loss"}[measure]
    axes.set_xlabel(f"{what}, 1e-4, 95 %")
    axes.set_title(f"{setup} set-up")


def _horizontal(value: float, interval: Sequence[float]) -> list[list[float]]:
    errors = _errors([value], [interval])
    assert errors is not None
    return errors


def tenths(axes: Axes, by_case: Mapping[str, Sequence[float]], setup: str) -> None:
    """Draw the progressive loss by tenths of the time since the first failure."""
    for case, parts in by_case.items():
        if case in _STYLES:
            axes.plot(range(1, len(parts) + 1), [part / UNIT for part in parts], **_style(case))
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("tenth of the time since the first failure")
    axes.set_ylabel("part of the progressive log loss, 1e-4")
    axes.set_title(f"{setup} set-up")
    axes.legend(frameon=False, fontsize=8)


def varied(axes: Axes, what: str, points: Sequence[Results]) -> None:
    """Draw the progressive loss of each policy over what was varied."""
    numbers = all(isinstance(point["value"], int | float) for point in points)
    for case in [name for name in _STYLES if any(name in point["cases"] for point in points)]:
        own = [(place, point) for place, point in enumerate(points) if case in point["cases"]]
        values = [point["cases"][case]["progressive"] for _, point in own]
        x = [point["value"] if numbers else place for place, point in own]
        errors = _errors(values, [point["cases"][case]["progressive_ci95"] for _, point in own])
        style = _style(case) | ({} if numbers else {"linestyle": "none"})
        axes.errorbar(x, [value / UNIT for value in values], yerr=errors, capsize=3, **style)
        if case == "partial":
            capped = [
                (a, value / UNIT) for a, value, (_, p) in zip(x, values, own, strict=True) if p["capped"]
            ]
            if capped:
                ring: dict[str, Any] = {"markersize": 14, "markerfacecolor": "none", "color": "black"}
                axes.plot(*zip(*capped, strict=True), "o", label="no save before the job's end", **ring)
    if numbers:
        _log_axis(axes, [point["value"] for point in points])
    else:
        axes.set_xticks(range(len(points)), [str(point["value"]) for point in points])
        axes.margins(x=0.2)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(VARIED.get(what, what))
    axes.set_ylabel("progressive log loss, 1e-4, 95 %")
    axes.legend(frameon=False, fontsize=8)


def _log_axis(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:.3g}" for value in values])
    axes.minorticks_off()


def scaling_overhead(axes: Axes, rows: Sequence[Results]) -> None:
    """Draw the formula's overhead over the number of shards; hollow where T_save exceeds the job."""
    for law, marker in (("constant", "o"), ("inverse", "^")):
        own = [row for row in rows if row["law"] == law]
        shards = [row["shards"] for row in own]
        for key, line, name in (
            ("overhead_formula_percent", "-", "partial"),
            ("full_formula_percent", ":", "full"),
        ):
            label = f"{name}, {_LAWS[law]}"
            axes.plot(shards, [row[key] for row in own], line, marker=marker, color="black", label=label)
        hollow = [
            (row["shards"], row["overhead_formula_percent"]) for row in own if not row["saves_before_end"]
        ]
        if hollow:
            axes.plot(*zip(*hollow, strict=True), marker, color="black", markerfacecolor="white")
    _log_axis(axes, sorted({row["shards"] for row in rows}))
    axes.set_yscale("log")
    axes.set_xlabel("shards (hollow: no save before the job's end)")
    axes.set_ylabel("overhead by the formula, %")
    axes.legend(frameon=False, fontsize=8)


def scaling_loss(axes: Axes, rows: Sequence[Results]) -> None:
    """Draw the progressive loss over the number of shards."""
    for law, fill in (("constant", None), ("inverse", "white")):
        own = [row for row in rows if row["law"] == law]
        for case in [name for name in _STYLES if all(name in row["cases"] for row in own)]:
            values = [row["cases"][case]["progressive"] / UNIT for row in own]
            style = _style(case) | {"label": f"{named(case)}, {_LAWS[law]}"}
            axes.plot([row["shards"] for row in own], values, markerfacecolor=fill, **style)
    _log_axis(axes, sorted({row["shards"] for row in rows}))
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("shards")
    axes.set_ylabel("progressive log loss, 1e-4")
    axes.legend(frameon=False, fontsize=8)


def proxies(axes: Axes, entries: Sequence[Results]) -> None:
    """Draw each candidate's rank correlation, pooled and within policies."""
    rows = list(reversed(entries))
    for prefix, marker, fill, label, shift in (
        ("", "o", "black", "pooled", 0.12),
        ("within_", "s", "white", "within policies", -0.12),
    ):
        values = [row[f"{prefix}rank_correlation"] for row in rows]
        ends = [row[f"{prefix}ci95"] for row in rows]
        errors = [
            [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
        ]
        places = [place + shift for place in range(len(rows))]
        look: dict[str, Any] = {"color": "black", "markerfacecolor": fill, "linestyle": "none"}
        axes.errorbar(values, places, xerr=errors, marker=marker, label=label, capsize=2, **look)
    axes.set_yticks(range(len(rows)), [row["name"].replace("_", " ") for row in rows], fontsize=8)
    axes.set_xlabel("rank correlation with the progressive loss, 95 %")
    axes.legend(frameon=False, fontsize=8)


def budget(axes: Axes, points: Sequence[Results]) -> None:
    """Draw progressive loss over bytes written, a line a policy."""
    for policy in dict.fromkeys(point["policy"] for point in points):
        own = [point for point in points if point["policy"] == policy and point["bytes_written"] > 0]
        values = [point["progressive"] for point in own]
        errors = _errors(values, [point["progressive_ci95"] for point in own])
        x = [point["bytes_written"] / 1e6 for point in own]
        axes.errorbar(x, [value / UNIT for value in values], yerr=errors, capsize=3, **_style(policy))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel("MB written")
    axes.set_ylabel("progressive log loss, 1e-4, 95 %")
    axes.legend(frameon=False)


def closed_loop(axes: Axes, study: Results, config: str) -> None:
    """Draw how often the target is exceeded over what not exceeding it costs."""
    opened = study["open"]
    for key, marker, line, label in (
        ("open_curve", ".", ":", "open loop, even intervals"),
        ("closed_curve", "^", "-", "closed loop, MTBF known"),
        ("closed_learning", "s", "--", "closed loop, MTBF learned"),
    ):
        x = [point["overhead_percent"]["mean"] for point in study[key]]
        y = [100.0 * point["p_exceeds"] for point in study[key]]
        axes.plot(x, y, marker=marker, linestyle=line, color="black", markerfacecolor="white", label=label)
    at = opened["overhead_percent"]["mean"], 100.0 * opened["p_exceeds"]
    axes.plot(*at, "*", markersize=14, color="black", label="the paper's interval", linestyle="none")
    axes.set_xlabel("mean overhead, %")
    axes.set_ylabel(f"jobs with PLS above {study['target_pls']:g}, %")
    axes.set_title(config.capitalize())
    axes.legend(frameon=False, fontsize=8)
