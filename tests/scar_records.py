"""Planted records of the study of SCAR: what every failure costs is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scar_study.arms import FRACTION, INTERVAL, LOST, NULL, POLICIES, Arm, rollback_cost
from study_common.records import Records

EXTRA = {"machine": {"cores": 2}, "data": {"source": "generated data"}, "command": "make scar-study"}
# Cost of a policy in parts of what full recovery costs, at 1/2 lost; it goes with the share lost.
SHARES = {"priority": 0.1, "random": 0.6, "round_robin": 0.5, "traditional": 0.5, "drift": 0.1}
ABOUT: dict[str, Any] = {
    "iterations": 60, "size": "1,000 samples",
    "target": 0.5, "reached": 60.0, "blocks": 100, "numbers": 1000, "distance": "l2",
    "stochastic": False, "second": "", "optimizer_state": False, "spread": 0.2,
    "objective": [2.0 - 0.025 * k for k in range(61)],
    "rollback": {"failed": 34, "expected": 2, "measured": 2.0},
}  # fmt: skip
NOISE = 0.75


def write_all(folder: Path, trials: int = 40, **changed: Mapping[str, Any]) -> Records:
    """Write the records of two workloads, one of them stochastic; `changed`: shares of one, by its name."""
    records = Records(folder)
    for name in ("mlr-mnist", "cnn-mnist"):
        workload, data = name.split("-")
        about = {**ABOUT, "workload": workload, "data": data, "variant": "", "stochastic": workload == "cnn"}
        about |= {"optimizer_state": workload == "cnn", "spread": 0.95 if workload == "cnn" else 0.2}
        records.write("trunk", name, 0, {"seed": 0, "made_from": "planted", **about})
        shares = {**SHARES, **changed.get(workload, {})}
        for trial in range(trials):
            failed = 2 + trial
            entries = [_entry(arm, shares, trial, failed, about) for arm in _arms(about)]
            records.write(
                "failures", name, failed, {"seed": failed, "made_from": "planted", "failures": entries}
            )
    points = [
        {
            "kind": kind,
            "norm": 0.1 * n,
            "relative": 0.05 * n,
            "cost": cost * n,
            "objective_cost": n,
            "bound": 2.0 * n,
        }
        for kind, cost in (("random", 0.5), ("adversarial", 2.5), ("reset", 1.0))
        for n in range(1, 6)
    ]
    estimate = {"supported": False, "reason": "the convergence is not linear (yet)", "c": None}
    bound = {"points": points, "c": 0.99, "distance": 3.0, "left": 0.3, "iteration": 30, "estimate": estimate}
    records.write("bound", "mlr-mnist", 0, {"seed": 0, "made_from": "planted", **bound})
    return records


def _arms(about: Mapping[str, Any]) -> list[Arm]:
    found = [Arm(part="main", policy=policy, lost=lost) for lost in LOST for policy in POLICIES]
    found += [Arm(part="drift", policy="drift", lost=lost) for lost in (0.25, 0.5)]
    found += [Arm(part="fraction", policy="priority", lost=0.5, fraction=0.25)]
    if about["stochastic"]:
        found += [Arm(part="null", policy="traditional", lost=0.0)]
        found += [Arm(part="state", policy="priority", lost=lost, state="zeroed") for lost in (0.25, 0.5)]
    return found


def _entry(
    arm: Arm, shares: Mapping[str, float], trial: int, failed: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    full = rollback_cost(failed, INTERVAL)
    noise = (NOISE if about["stochastic"] else 0.0) + 0.05 * (trial % 3 - 1)
    cost = 2 * arm.lost * shares[arm.policy] * full + (0.4 if arm.state == "zeroed" else 0.0)
    cost += {FRACTION: 0.0}.get(arm.fraction, 0.2) + noise
    if arm.name == NULL:
        cost = noise
    return {"arm": arm.name, "trial": trial, "norm": 0.1, "lag": cost, "cost": cost}
