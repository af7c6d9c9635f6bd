"""Statistics of differences that are paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

RESAMPLES = 2000
POWER = 0.8
MOST_SEEDS = 10_000

Floats = NDArray[np.float64]


def summary(differences: ArrayLike) -> dict[str, Any]:
    """Return mean, two-sided 95 % interval and both one-sided 95 % bounds of the mean (Student's t).

    `differences`: one a seed. Interval and bounds are None for fewer than two seeds.
    """
    values = np.asarray(differences, np.float64)
    seeds = len(values)
    if not seeds:
        raise ValueError("summary: there is no seed")
    mean = float(values.mean())
    result: dict[str, Any] = {"mean": mean, "sd": None, "ci95": None, "lower95": None, "upper95": None}
    if seeds > 1:
        sd = float(values.std(ddof=1))
        error = sd / math.sqrt(seeds)
        two, one = (float(stats.t.ppf(level, seeds - 1)) * error for level in (0.975, 0.95))
        result |= {"sd": sd, "ci95": [mean - two, mean + two], "lower95": mean - one, "upper95": mean + one}
    return result | {"seeds": seeds}


def excludes_zero(interval: Sequence[float] | None) -> bool:
    """Return whether an interval lies on one side of 0; one that is not known does not."""
    return interval is not None and (interval[0] > 0 or interval[1] < 0)


def p_above_zero(differences: ArrayLike) -> float:
    """Return the one-sided p-value against a mean of at most 0 (t-test); 1 for fewer than two seeds."""
    values = np.asarray(differences, np.float64)
    if len(values) < 2:
        return 1.0
    if np.ptp(values) == 0:
        return 0.0 if values[0] > 0 else 1.0
    return float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's step-down method."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def seeds_needed(distance: float, sd: float | None, alpha: float = 0.05) -> int | None:
    """Return the seeds that find a mean `distance` above a bound, one-sided at `alpha`, at a power of 80 %.

    None where no number up to `MOST_SEEDS` does: the mean is on the other side, or its spread not known.
    """
    if sd is None or distance <= 0:
        return None
    if sd == 0:
        return 2
    effect = distance / sd
    # The normal distribution asks for a few less than Student's t.
    seeds: int = max(2, math.ceil(((stats.norm.ppf(1.0 - alpha) + stats.norm.ppf(POWER)) / effect) ** 2))
    power = TTestPower().power
    while seeds <= MOST_SEEDS:
        if power(effect_size=effect, nobs=seeds, alpha=alpha, alternative="larger") >= POWER:
            return seeds
        seeds += 1
    return None


def resamples(seeds: int, count: int = RESAMPLES) -> NDArray[np.int64]:
    """Return `count` draws with replacement of `seeds` seeds, [count, seeds]; always the same."""
    return np.random.default_rng(0).integers(seeds, size=(count, seeds))


def interval(draws: Floats) -> list[float]:
    """Return the 95 % percentile interval of bootstrap draws, [count]."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return [float(low), float(high)]


def correlations(x: Floats, y: Floats) -> Floats:
    """Return Pearson's correlation along the last axis; 0 where one side does not vary."""
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean(axis=-1, keepdims=True)
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    products = (x * y).sum(axis=-1)
    found: Floats = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    return found


def ranks(values: Floats) -> Floats:
    """Return the ranks along the last axis, ties by their mean."""
    ranked: Floats = stats.rankdata(values, axis=-1)
    return ranked
