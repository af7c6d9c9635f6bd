"""What a job learns about its failures and costs while it runs: estimates that begin with a prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from cpr_native.overhead._checks import check_number
from cpr_native.overhead._gamma import gamma_quantile


def _check_quantile(q: float) -> None:
    if not 0 < q < 1:
        raise ValueError(f"q must be in (0, 1), got {q}")


def _restored(owner: str, state: Mapping[str, Any], names: tuple[str, ...]) -> list[float]:
    """Return the numbers of `state` in the order of `names`; ValueError for others."""
    if set(state) != set(names):
        raise ValueError(
            f"{owner}: state must have {', '.join(names)}, got {', '.join(sorted(state)) or 'none'}"
        )
    for name in names:
        check_number(owner, name, state[name], positive=False)
    return [float(state[name]) for name in names]


class MtbfEstimate:
    """The mean time between failures, from the failures so far and the hours without one.

    Times between failures are exponential; the failure rate has a gamma prior that is worth `weight` failures
    seen in `weight * mtbf_hours` hours, and the running time since the last failure counts too (censored):
    after n failures in h hours the rate is gamma of shape `weight + n` and `weight * mtbf_hours + h` hours.
    Raises ValueError for values that are not positive and finite.
    """

    def __init__(self, mtbf_hours: float, *, weight: float = 2.0) -> None:
        check_number("MtbfEstimate", "mtbf_hours", mtbf_hours, positive=True)
        check_number("MtbfEstimate", "weight", weight, positive=True)
        self._prior_shape, self._prior_hours = float(weight), float(weight * mtbf_hours)
        self.failures = 0
        self.observed_hours = 0.0

    @property
    def shape(self) -> float:
        """Shape of the rate's posterior."""
        return self._prior_shape + self.failures

    @property
    def scale_hours(self) -> float:
        """The hours that the rate's posterior has seen, its prior's included (the gamma's rate parameter)."""
        return self._prior_hours + self.observed_hours

    @property
    def rate(self) -> float:
        """Posterior mean of the failures per hour."""
        return self.shape / self.scale_hours

    @property
    def hours(self) -> float:
        """The MTBF in hours: the inverse of `rate`."""
        return self.scale_hours / self.shape

    def quantile_hours(self, q: float) -> float:
        """Return the posterior's `q`-quantile of the MTBF, hours; ValueError for `q` outside (0, 1)."""
        _check_quantile(q)
        return self.scale_hours / gamma_quantile(self.shape, 1.0 - q)

    def observe(self, hours: float) -> None:
        """Add hours of running; ValueError for a negative or non-finite number."""
        check_number("MtbfEstimate", "hours", hours, positive=False)
        self.observed_hours += hours

    def failed(self) -> None:
        """Add a failure at the end of the hours observed."""
        self.failures += 1

    def state_dict(self) -> dict[str, Any]:
        """Return what was observed, as JSON values; the prior is a setting."""
        return {"failures": self.failures, "observed_hours": self.observed_hours}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError for anything else, with nothing changed."""
        failures, hours = _restored("MtbfEstimate", state, ("failures", "observed_hours"))
        self.failures, self.observed_hours = int(failures), hours


class CostEstimate:
    """The mean of a cost in hours, and how sure it is.

    The prior counts as `weight` observations of mean `prior_hours` and standard deviation
    `spread * prior_hours`; the running mean and variance go on from them (Welford). Raises ValueError for a
    negative prior and for `weight` or `spread` that is not positive and finite.
    """

    def __init__(self, prior_hours: float, *, weight: float = 4.0, spread: float = 0.5) -> None:
        check_number("CostEstimate", "prior_hours", prior_hours, positive=False)
        check_number("CostEstimate", "weight", weight, positive=True)
        check_number("CostEstimate", "spread", spread, positive=True)
        self._weight = weight
        self.observations = 0
        self.hours = float(prior_hours)
        self._squares = weight * (spread * prior_hours) ** 2

    @property
    def standard_error(self) -> float:
        """Standard deviation of `hours` as an estimate of the mean."""
        return math.sqrt(self._squares) / (self._weight + self.observations)

    def interval(self, confidence: float = 0.9) -> tuple[float, float]:
        """Return a normal interval of the mean, hours, its lower end at least 0.

        Raises ValueError for `confidence` outside (0, 1).
        """
        _check_quantile(confidence)
        width = NormalDist().inv_cdf(0.5 + confidence / 2) * self.standard_error
        return max(0.0, self.hours - width), self.hours + width

    def observe(self, hours: float) -> None:
        """Add an observation; ValueError for a negative or non-finite number."""
        check_number("CostEstimate", "hours", hours, positive=False)
        self.observations += 1
        step = hours - self.hours
        self.hours += step / (self._weight + self.observations)
        self._squares += step * (hours - self.hours)

    def state_dict(self) -> dict[str, Any]:
        """Return observations, mean and sum of squares, as JSON values."""
        return {"observations": self.observations, "hours": self.hours, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; ValueError for anything else, with nothing changed."""
        observations, hours, squares = _restored("CostEstimate", state, ("observations", "hours", "squares"))
        self.observations, self.hours, self._squares = int(observations), hours, squares
