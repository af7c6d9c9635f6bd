"""Open loop against closed loop over many simulated jobs: what keeping the target costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np

from cpr_native.overhead.equations import Preset, partial_interval
from cpr_native.overhead.loop import ClosedLoop
from cpr_native.overhead.simulate import Jobs, simulate_closed, simulate_open

PROBABILITIES = (0.5, 0.65, 0.8, 0.9, 0.95, 0.99)


def binomial_interval(share: float, count: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a probability of which `share` of `count` trials were seen."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def closed_loop_study(
    preset: Preset, *, probabilities: Sequence[float] = PROBABILITIES, jobs: int = 10_000, seed: int = 0
) -> dict[str, Any]:
    """Compare open and closed loops on the same failures; return JSON values.

    `job`, `costs_hours`, `target_pls`, `jobs`, `seed`: the setting. `open`: the paper's interval.
    `open_curve`: even intervals of T/1, T/2, ... hours, the best that an open loop can do with each number
    of saves. `closed_curve`: a closed loop at each of `probabilities` that knows the MTBF;
    `closed_learning`: one that begins with it as a guess. Each point has `interval_hours` (open) or
    `probability` (closed), `p_exceeds` (share of jobs with a PLS above the target), `p_exceeds_ci95`,
    `overhead_percent` and `pls` (each `mean`, `p5`, `p95`), and `saves` (mean). Raises ValueError.
    """
    job, costs, target = preset.job, preset.costs, preset.target_pls
    common = {"jobs": jobs, "seed": seed}

    def opened(interval: float) -> dict[str, Any]:
        done = simulate_open(job, costs, interval, jobs=jobs, seed=seed)
        return {"interval_hours": interval, **describe(done, target)}

    def closed(probability: float, known_rate: bool) -> dict[str, Any]:
        loop = ClosedLoop(probability=probability)
        done = simulate_closed(job, costs, target, loop, known_rate=known_rate, jobs=jobs, seed=seed)
        return {"probability": probability, **describe(done, target)}

    curve = [opened(job.total_hours)]
    while curve[-1]["p_exceeds"] > 1.0 - max(probabilities) and len(curve) < 64:
        curve.append(opened(job.total_hours / (len(curve) + 1)))
    return {
        "job": asdict(job),
        "costs_hours": {name: value for name, value in asdict(costs).items() if value is not None},
        "target_pls": target,
        **common,
        "open": opened(partial_interval(job, target)[0]),
        "open_curve": curve,
        "closed_curve": [closed(probability, True) for probability in probabilities],
        "closed_learning": [closed(probability, False) for probability in probabilities],
    }


def describe(done: Jobs, target_pls: float) -> dict[str, Any]:
    """Return what some simulated jobs came to: see `closed_loop_study`."""
    exceeds = done.exceeding(target_pls)
    return {
        "p_exceeds": exceeds,
        "p_exceeds_ci95": list(binomial_interval(exceeds, len(done.pls))),
        "overhead_percent": spread(done.overhead_percent),
        "pls": spread(done.pls),
        "saves": float(done.saves.mean()),
    }


def spread(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """Return mean, 5 % and 95 % quantile of some values."""
    low, high = np.quantile(values, (0.05, 0.95))
    return {"mean": float(values.mean()), "p5": float(low), "p95": float(high)}
