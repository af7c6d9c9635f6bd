"""The predictive loop of one job: what it has learnt of its convergence, and the saves that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpr_native.iteration_cost._numbers import Range, check_number, check_open_unit
from cpr_native.iteration_cost.choice import Choice, SaveCost, choose
from cpr_native.iteration_cost.contraction import Contraction, ContractionEstimator
from cpr_native.iteration_cost.movement import Movement

_INTERVALS = 24


@dataclass(frozen=True, kw_only=True)
class IterationLoop:
    """Choose interval and fraction of priority saves from how the training converges.

    `fractions`: to choose from, each in (0, 1]; `least_interval`: iterations between saves at least;
    `most_interval`: at most (None: as many as a tenth of the MTBF); `confidence`: of the intervals of c;
    `window`: means kept of the losses; `fixed_share`: of a full save's cost that any save has, until saves
    were timed; `cost_weight`: the given costs count as that many saves; `mtbf_weight`: the given MTBF counts
    as that many failures; `measure_costs`: saves are timed (False where the job's hours are emulated). As
    long as the losses do not support an estimate the saves stay as they were. Raises ValueError.
    """

    fractions: tuple[float, ...] = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
    least_interval: int = 1
    most_interval: int | None = None
    confidence: float = 0.95
    window: int = 128
    fixed_share: float = 0.1
    cost_weight: float = 4.0
    mtbf_weight: float = 2.0
    measure_costs: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "fractions", tuple(float(fraction) for fraction in self.fractions))
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ValueError(f"IterationLoop: fractions must be in (0, 1], got {self.fractions}")
        if self.least_interval < 1:
            raise ValueError(f"IterationLoop: least_interval must be at least 1, got {self.least_interval}")
        if self.most_interval is not None and self.most_interval < self.least_interval:
            raise ValueError(
                f"IterationLoop: most_interval must be at least {self.least_interval}, "
                f"got {self.most_interval}"
            )
        check_open_unit("IterationLoop", "fixed_share", self.fixed_share)
        for name in ("cost_weight", "mtbf_weight"):
            check_number("IterationLoop", name, getattr(self, name), positive=True)
        ContractionEstimator(window=self.window, confidence=self.confidence)


class SaveCostEstimate:
    """Seconds of training that a save of a fraction costs, learnt as a straight line in the fraction.

    `full_seconds`: of a save of everything, `fixed_share` of it in any save, both worth `weight`
    observations.
    """

    def __init__(self, full_seconds: float, *, fixed_share: float, weight: float) -> None:
        check_number("SaveCostEstimate", "full_seconds", full_seconds, positive=True)
        fixed = fixed_share * full_seconds
        half = weight / 2
        self._sums = half * np.array([2.0, 1.0, 1.0, fixed + full_seconds, full_seconds])

    def observe(self, fraction: float, seconds: float) -> None:
        """Add a save; ValueError for numbers out of range."""
        check_number("SaveCostEstimate", "seconds", seconds, positive=False)
        if not 0 <= fraction <= 1:
            raise ValueError(f"SaveCostEstimate: fraction must be in [0, 1], got {fraction}")
        self._sums = self._sums + np.array([1.0, fraction, fraction**2, seconds, fraction * seconds])

    @property
    def cost(self) -> SaveCost:
        """The line of least squares, no part of it below 0."""
        n, x, xx, y, xy = self._sums
        slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        fixed = max(0.0, (y - slope * x) / n)
        if fixed == 0:
            slope = xy / xx
        return SaveCost(fixed=float(fixed), full=float(max(slope, 1e-12)))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of the regression, as JSON values."""
        return {"sums": self._sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError for anything else."""
        sums = np.array(state["sums"], dtype=np.float64)
        if sums.shape != (5,) or not np.isfinite(sums).all() or sums[0] * sums[2] <= sums[1] ** 2:
            raise ValueError(f"not the state of a SaveCostEstimate: {state['sums']}")
        self._sums = sums


class IterationLoopState:
    """The estimates of one job, and the interval and fraction in force.

    `settings`; `save_seconds`: of a save of everything; `reload_seconds`: of a recovery; `lost_share`: of
    the blocks that a failure takes; `interval`, `fraction`: in force until the data support a choice.
    `contraction`: the newest estimate, `choice`: the newest choice (None before), `save`: the costs.
    """

    def __init__(
        self,
        settings: IterationLoop,
        *,
        save_seconds: float,
        reload_seconds: float,
        lost_share: float,
        interval: int,
        fraction: float,
    ) -> None:
        self.settings = settings
        self.interval = interval
        self.fraction = fraction
        self.save = SaveCostEstimate(
            save_seconds, fixed_share=settings.fixed_share, weight=settings.cost_weight
        )
        self._reload_seconds = check_number(
            "IterationLoopState", "reload_seconds", reload_seconds, positive=False
        )
        self._lost_share = lost_share
        self._estimator = self._fresh()
        self.contraction: Contraction = self._estimator.from_losses()
        self.choice: Choice | None = None

    def _fresh(self) -> ContractionEstimator:
        return ContractionEstimator(window=self.settings.window, confidence=self.settings.confidence)

    def observe(self, loss: float) -> None:
        """Add the loss of the next iteration; one that is not finite is left out."""
        if math.isfinite(loss):
            self._estimator.observe(loss)

    def perturbed(self) -> None:
        """Begin the losses anew: a recovery has changed the model. The last estimate holds until then."""
        self._estimator = self._fresh()

    def replan(
        self,
        movement: Movement,
        *,
        mtbf_seconds: float,
        seconds_per_iteration: float,
        writing_seconds: float = 0.0,
    ) -> Choice | None:
        """Choose `interval` and `fraction` anew; None, and both as they were, where the data say nothing.

        `movement`: of the blocks, as of now; its distances also say how far the optimum is;
        `writing_seconds`: from a save's begin to its commit, less than which no interval can be.
        """
        estimate = self._estimator.from_losses()
        if estimate.supported or not self.contraction.supported:
            self.contraction = estimate
        c = self.contraction.c
        if not self.contraction.supported or movement.distance(c.value) == 0:
            return None
        settings = self.settings
        least = max(settings.least_interval, math.ceil(writing_seconds / seconds_per_iteration))
        most = max(least, settings.most_interval or int(0.1 * mtbf_seconds / seconds_per_iteration))
        intervals = np.unique(np.geomspace(least, most, _INTERVALS).round().astype(int))
        distances = [movement.distance(value) for value in (c.value, c.low, c.high)]
        self.choice = choose(
            movement.perturbations(c.value, intervals, np.array(settings.fractions)),
            intervals=intervals.tolist(),
            fractions=settings.fractions,
            c=c,
            distance=Range(distances[0], min(distances), max(distances)),
            save=self.save.cost,
            mtbf_seconds=mtbf_seconds,
            seconds_per_iteration=seconds_per_iteration,
            lost_share=self._lost_share,
            reload_seconds=self._reload_seconds,
        )
        self.interval, self.fraction = self.choice.interval, self.choice.fraction
        return self.choice

    def state_dict(self) -> dict[str, Any]:
        """Return what was learnt and the saves in force, as JSON values."""
        return {
            "estimator": self._estimator.state_dict(),
            "save": self.save.state_dict(),
            "interval": self.interval,
            "fraction": self.fraction,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError, KeyError for anything else."""
        estimator = self._fresh()
        estimator.load_state_dict(state["estimator"])
        interval, fraction = int(state["interval"]), float(state["fraction"])
        if interval < 1 or not 0 < fraction <= 1:
            raise ValueError(f"not the state of an IterationLoop: interval {interval}, fraction {fraction}")
        self.save.load_state_dict(state["save"])
        self._estimator, self.interval, self.fraction = estimator, interval, fraction
        self.contraction = estimator.from_losses()
