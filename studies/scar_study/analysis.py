"""Reductions of the iteration cost, paired by trial, and what they say about the goals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study_common.inference import Floats, interval, resamples

from scar_study.arms import INTERVAL, LOST, POLICIES, rollback_cost
from scar_study.forks import LONGEST

Record = Mapping[str, Any]
LEAST = 78.0
BEST = 95.0
KEYS = ("workload", "data", "variant")
SHOWN = ("reduction_percent", "ci95", "corrected_percent", "corrected_ci95")


def by_arm(records: Sequence[Record]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the failures of a workload's records by arm and trial, each with its iteration as `failed`."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        for entry in record["failures"]:
            found.setdefault(entry["arm"], {})[entry["trial"]] = {**entry, "failed": record["seed"]}
    return {arm: dict(sorted(trials.items())) for arm, trials in found.items()}


def row(about: Record, arm: str, trials: Mapping[int, Record], null: Mapping[int, Record]) -> dict[str, Any]:
    """Return the figures of one arm of a workload.

    `reduction_percent` is 1 - mean cost / mean cost of full recovery in the same trials, `ci95` its
    interval by a bootstrap of the trials, `whole_percent` the same with whole iterations. What hasn't reached
    the target in time counts with the time it was given. `lag_cost`: what the failures would cost if only the
    lag along the run's way counted. `null`: the failures of the arm that loses one block; `corrected_percent`
    and `corrected_ci95` are for costs less those of these, trial by trial (None without them).
    """
    named = _parsed(arm)
    failed = [trial["failed"] for trial in trials.values()]
    longest = (LONGEST - 1) * about["iterations"]
    costs = np.array([longest if t["cost"] is None else t["cost"] for t in trials.values()], np.float64)
    full = np.array([rollback_cost(at, named["interval"]) for at in failed], np.float64)
    reached = about["reached"]
    whole = np.ceil(np.round(reached + costs, 6)) - math.ceil(round(reached, 6))
    draws = resamples(len(costs))
    means, full_means = costs[draws].mean(-1), full[draws].mean(-1)
    known = full_means > 0
    return {
        **{key: about[key] for key in KEYS}, **named, "trials": len(costs),
        "iteration_cost": float(costs.mean()), "cost_ci95": interval(means),
        "rollback_cost": float(full.mean()),
        "reduction_percent": _percent(costs.mean(), full.mean()),
        "ci95": interval(100.0 * (1.0 - means[known] / full_means[known])) if known.any() else None,
        "whole_percent": _percent(whole.mean(), full.mean()),
        "lag_cost": float(np.mean([t["lag"] for t in trials.values()])),
        "norm": float(np.mean([t["norm"] for t in trials.values()])),
        "unreached": sum(t["cost"] is None for t in trials.values()),
        **_corrected(costs, full, [null.get(trial, {}).get("cost") for trial in trials], draws),
    }  # fmt: skip


def _corrected(
    costs: Floats, full: Floats, nothing: Sequence[float | None], draws: NDArray[np.int64]
) -> dict[str, Any]:
    found = [cost for cost in nothing if cost is not None]
    if len(found) < len(costs):
        return {"corrected_percent": None, "corrected_ci95": None}
    less = costs - np.array(found)
    means, full_means = less[draws].mean(-1), full[draws].mean(-1)
    known = full_means > 0
    return {
        "corrected_percent": _percent(less.mean(), full.mean()),
        "corrected_ci95": interval(100.0 * (1.0 - means[known] / full_means[known])) if known.any() else None,
    }


def _percent(cost: float, full: float) -> float | None:
    return 100.0 * (1.0 - float(cost) / float(full)) if full > 0 else None


def _parsed(arm: str) -> dict[str, Any]:
    part, policy, lost, fraction, every, *rest = arm.split(" ")
    return {
        "part": part, "policy": policy, "lost": float(lost), "fraction": float(fraction),
        "interval": int(every), "of": rest[0] if len(rest) == 2 else "", "state": rest[-1],
    }  # fmt: skip


def difference(lower: Mapping[int, Record], higher: Mapping[int, Record]) -> dict[str, Any] | None:
    """Return by how many iterations arm `higher` costs more than `lower`, paired by trial."""
    both = [n for n in lower if n in higher and None not in (lower[n]["cost"], higher[n]["cost"])]
    if len(both) < 2:
        return None
    differences: Floats = np.array([higher[n]["cost"] - lower[n]["cost"] for n in both])
    ends = interval(differences[resamples(len(both))].mean(-1))
    return {
        "mean": float(differences.mean()), "ci95": ends, "trials": len(both),
        "resolved": ends[0] > 0 or ends[1] < 0,
    }  # fmt: skip


def goals(rows: Sequence[Record], abouts: Mapping[str, Record]) -> dict[str, Any]:
    """Judge the goals: at least 78 % for certain at 1/4 and 1/2 lost, above 95 % once at 1/4.

    Where a failure of one block was run, less its cost too.
    """
    bars = []
    for name, about in abouts.items():
        for lost in (0.25, 0.5) if not about["variant"] else ():
            own = find(rows, about, part="main", policy="priority", lost=lost)
            if own is None:
                own = dict.fromkeys((*SHOWN, "trials"))
            ends = [own[key][0] for key in ("ci95", "corrected_ci95") if own[key] is not None]
            bars.append({
                "name": name, "lost": lost, **{key: own[key] for key in SHOWN},
                "trials": own["trials"] or 0, "reached": bool(ends) and min(ends) >= LEAST,
            })  # fmt: skip
    quarter = [bar for bar in bars if bar["lost"] == 0.25 and bar["reduction_percent"] is not None]
    best = max(quarter, key=_surest, default=None)
    return {
        "least": LEAST, "bars": bars, "best_percent": BEST, "best": best,
        "best_reached": best is not None and _surest(best) > BEST,
    }  # fmt: skip


def _surest(bar: Record) -> float:
    """Return the lower of a bar's reductions."""
    found = [bar[key] for key in ("reduction_percent", "corrected_percent") if bar[key] is not None]
    return float(min(found))


def find(rows: Sequence[Record], about: Record, **wanted: Any) -> dict[str, Any] | None:
    """Return the row of a workload with the wanted figures, None without one."""
    wanted = {"interval": INTERVAL, "fraction": 0.125, "of": "", "state": "restored", **wanted}
    wanted |= {key: about[key] for key in KEYS}
    for entry in rows:
        if all(entry[key] == value for key, value in wanted.items()):
            return dict(entry)
    return None


def partial_range(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, for each share lost, the reductions of every policy over the workloads, lowest to highest."""
    found = []
    for lost in LOST:
        for policy in POLICIES:
            own = [
                r["reduction_percent"] for r in rows
                if (r["part"], r["policy"], r["lost"], r["variant"]) == ("main", policy, lost, "")
                and r["reduction_percent"] is not None
            ]  # fmt: skip
            if own:
                found.append({"lost": lost, "policy": policy, "lowest": min(own), "highest": max(own)})
    return found


def bound_figures(record: Record) -> dict[str, Any]:
    """Return how many perturbations of each kind cost at most the bound, and how far the worst is off."""
    kinds = []
    for kind in dict.fromkeys(point["kind"] for point in record["points"]):
        own = [p for p in record["points"] if p["kind"] == kind and p["cost"] is not None]
        excess = [p["cost"] - p["bound"] for p in own]
        kinds.append({
            "kind": kind, "count": len(own), "within": sum(e <= 0 for e in excess),
            "worst_excess": max(excess, default=None),
            "mean_share": float(np.mean([p["cost"] / p["bound"] for p in own])) if own else None,
        })  # fmt: skip
    return {
        **{key: record[key] for key in ("c", "distance", "left", "iteration", "estimate", "points")},
        "kinds": kinds,
    }
