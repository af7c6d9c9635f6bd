"""The interval that keeps the final PLS below its target with a chosen probability.

The mean of the CPR paper's equation says nothing about one job. What a job still loses is a compound Poisson
sum: each failure loses the work since the last save, its age. In *hours of age* the budget is
`(target - PLS so far) * T * N / k` (T hours of the job, N shards, k lost at a failure). All functions
take arrays of one shape, one element a job, and the numbers of one job as arrays of length 1.

The rate of failures is known to a gamma distribution (`MtbfEstimate`), so their number is negative binomial;
a shape of `KNOWN_RATE` is a known rate, and Poisson.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hours = NDArray[np.float64]

KNOWN_RATE = 1e9
"""A gamma shape so large that the rate is as good as known."""

CELLS = 64
"""Grid cells of the budget, at least; the error of a probability is below 0.002 (tests/overhead)."""

_CELLS_AN_INTERVAL = 4  # a coarser grid would widen the losses of a failure
_MOST_CELLS = 512

_FEW_FAILURES = 200.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is ahead of some jobs; float64 arrays of one shape [jobs].

    `budget`: hours of age that may still be lost; `remaining`: hours of work left, above 0; `age`: hours
    since the last complete save; `shape`, `scale`: gamma of the failure rate, `shape / scale` an hour;
    `steady_hours`: for policies without complete saves, which at any failure lose uniformly in (0, interval):
    the longest interval to consider; `age` is then not used.
    """

    budget: Hours
    remaining: Hours
    age: Hours
    shape: Hours
    scale: Hours
    steady_hours: float | None = None

    def take(self, index: NDArray[np.intp]) -> Outlook:
        """Return the jobs at `index`."""
        return Outlook(
            budget=self.budget[index],
            remaining=self.remaining[index],
            age=self.age[index],
            shape=self.shape[index],
            scale=self.scale[index],
            steady_hours=self.steady_hours,
        )

    @property
    def span(self) -> Hours:
        """Hours that whole intervals should fill: from the last save to the job's end."""
        if self.steady_hours is not None:
            return np.full_like(self.remaining, self.steady_hours)
        return self.remaining + self.age


def probability_within(outlook: Outlook, interval: Hours, *, cells: int = CELLS) -> Hours:
    """Return the probability that the losses still to come stay within the budget; 0 without a budget.

    `interval`: hours between saves from now on, the next one at that age, or at once where the age is above
    it already; the last interval is cut short by the job's end. The ages at which a failure can strike are
    counted exactly and split linearly onto a grid (the mean is kept); the sum over the failures is Panjer's
    recursion, exact on that grid.
    """
    within = np.zeros_like(outlook.budget)
    index = np.flatnonzero(outlook.budget > 0)
    if len(index):
        part = outlook.take(index)
        needed = _CELLS_AN_INTERVAL * np.max(part.budget / interval[index])
        cells = max(cells, int(min(needed, _MOST_CELLS)))
        step = part.budget / cells
        ages = _ages(part, interval[index], step, cells)
        within[index] = _sum_within(ages, part)
    return within


def _ages(outlook: Outlook, interval: Hours, step: Hours, cells: int) -> Hours:
    """Probabilities of a failure's age on the grid: float64 [cells + 1, jobs], the rest is above it."""
    remaining = outlook.remaining
    grid = np.arange(-1, cells + 2)[:, None] * step

    def below(bound: Hours) -> Hours:
        """Second integral over age of the indicator of (0, bound)."""
        inside = np.clip(grid, 0.0, bound)
        return np.asarray(inside * (np.maximum(grid, 0.0) - inside / 2), np.float64)

    if outlook.steady_hours is not None:
        total = remaining / interval * below(interval)
    else:
        age = np.where(outlook.age < interval, outlook.age, 0.0)
        first = np.minimum(interval - age, remaining)
        whole = np.floor((remaining - first) / interval)
        last = np.maximum(remaining - first - whole * interval, 0.0)
        total = whole * below(interval) + below(last) + below(age + first) - below(age)
    return (total[2:] - 2 * total[1:-1] + total[:-2]) / (step * remaining)


def _sum_within(ages: Hours, outlook: Outlook) -> Hours:
    """Probability that the ages of all failures ahead sum to less than the grid's end, [jobs]."""
    halvings = 0
    most = float(np.max(outlook.shape * outlook.remaining / outlook.scale))
    while most / 2**halvings > _FEW_FAILURES:  # the chance of no failure would underflow
        halvings += 1
    shape = outlook.shape / 2**halvings
    a = outlook.remaining / (outlook.scale + outlook.remaining)
    b = (shape - 1.0) * a
    none = 1.0 - a * ages[0]
    cells = len(ages) - 1
    sums = np.empty_like(ages)
    sums[0] = np.exp(shape * (np.log1p(-a) - np.log(none)))
    level, slope = a * ages[1:], b * ages[1:] * np.arange(1, cells + 1)[:, None]
    for cell in range(1, cells + 1):
        weights = level[:cell] + slope[:cell] / cell
        sums[cell] = np.einsum("cj,cj->j", weights, sums[cell - 1 :: -1]) / none
    for _ in range(halvings):
        sums = np.stack([np.einsum("cj,cj->j", sums[: i + 1], sums[i::-1]) for i in range(cells + 1)])
    return np.asarray(np.clip(sums[:-1].sum(axis=0) + sums[-1] / 2, 0.0, 1.0), np.float64)


def even_intervals(
    outlook: Outlook, probability: Hours, least_interval: Hours
) -> tuple[Hours, NDArray[np.bool_]]:
    """Return the longest even intervals that keep the losses within the budget, hours, and which do.

    Intervals are a whole part of the span, from the last save to the job's end: a last interval that the
    end cuts short costs a save and protects little. The number of saves is found by bisection, since the
    losses only grow with the interval. Where even `least_interval` does not reach `probability`, the result
    is `least_interval` and False.
    """
    span = outlook.span
    most = np.maximum(np.floor(span / least_interval), 1.0)

    def reached(index: NDArray[np.intp], parts: Hours) -> NDArray[np.bool_]:
        within = probability_within(outlook.take(index), span[index] / parts)
        return np.asarray(within >= probability[index], np.bool_)

    everyone = np.arange(len(span))
    possible = reached(everyone, most)
    low, high = np.zeros_like(span), most.copy()
    index = np.flatnonzero(possible & (high - low > 1))
    while len(index):
        middle = np.floor((low[index] + high[index]) / 2)
        enough = reached(index, middle)
        high[index] = np.where(enough, middle, high[index])
        low[index] = np.where(enough, low[index], middle)
        index = index[high[index] - low[index] > 1]
    return np.where(possible, span / high, least_interval), possible


def hazard(outlook: Outlook, hours: Hours, interval: Hours) -> Hours:
    """Return the expected failures in the next `hours` that alone would break the budget.

    They strike at an age above the budget. Summed over a job this compensates the event that the budget
    breaks: its probability is the sum's mean (the Doob-Meyer decomposition).
    """
    rate = outlook.shape / outlook.scale
    if outlook.steady_hours is not None:
        return rate * hours * np.clip(1.0 - outlook.budget / interval, 0.0, 1.0)
    safe = np.maximum(outlook.age, outlook.budget)
    return np.asarray(rate * np.maximum(outlook.age + hours - safe, 0.0), np.float64)


def planned_intervals(
    outlook: Outlook, *, miss: float, spent: Hours, least_interval: Hours, exhausted_interval: float
) -> tuple[Hours, NDArray[np.bool_]]:
    """Return the hours between saves of a closed loop, and whether the promise can still be kept.

    `miss`: the chance to miss the target that the whole job may take, `spent`: what `hazard` has summed up of
    it so far; the plan ahead may take the rest, at least a hundredth. Without this account each new plan
    would take the whole of it again. Where nothing that is left can keep the target (the budget is
    used up), the interval is `exhausted_interval`: frequent saves could not win it back.
    """
    allowed = np.maximum(miss - spent, miss / 100)
    interval, possible = even_intervals(outlook, 1.0 - allowed, least_interval)
    return np.where(outlook.budget > 0, interval, exhausted_interval), possible
