"""The bound of the SCAR paper on what perturbations cost, with its assumptions said and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cpr_native.iteration_cost._numbers import check_number, check_open_unit

_ASSUMED = (
    "||f(x) - x*|| <= c * ||x - x*|| wherever the run goes (contraction towards one optimum)",
    "the perturbations are the only departure from the iteration (no noise of its own)",
    "the run decays at the rate c from its start (elsewhere the bound can be exceeded by a few iterations)",
)


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A bound on extra iterations, and what it stands on.

    `iterations`: the bound; `total_perturbation`: D = sum of c^(-l) * E||delta_l||, infinite where it is no
    float; `c`, `distance`: as given; `assumed`: what it takes for granted; `checked`: what was looked at in
    the data; `violated`: what the data contradict.
    """

    iterations: float
    total_perturbation: float
    c: float
    distance: float
    assumed: tuple[str, ...]
    checked: tuple[str, ...]
    violated: tuple[str, ...]

    @property
    def supported(self) -> bool | None:
        """Whether the data support it: None when there were none, False when they contradict it."""
        return None if not self.checked else not self.violated


def bound(
    perturbations: Mapping[int, float],
    *,
    c: float,
    distance: float,
    observed: Sequence[float] | None = None,
    tolerance: float = 1e-6,
) -> Bound:
    """Bound the extra iterations that `perturbations` cost.

    For y[k+1] = f(y[k] + delta[k]) and ||f(x) - x*|| <= c ||x - x*|| the iterations until
    E||y - x*|| is within eps grow by at most log(1 + D / ||x0 - x*||) / log(1/c), whatever eps is, with
    D = sum over l of c^(-l) E||delta_l||: the later a perturbation, the more it costs.

    `perturbations`: E||delta_l|| by iteration l, from 0; `c`: in (0, 1); `distance`: ||x0 - x*||, in the
    unit of the perturbations; `observed`: ||y[k] - x*|| of a run with these perturbations, in which each
    step is held against c * (observed[k] + delta[k]), up to the relative `tolerance`. Raises ValueError for
    numbers out of range. Source: Qiao et al., ICML 2019 (arXiv 1810.07354), bound of the iteration cost.
    """
    check_open_unit("bound", "c", c)
    check_number("bound", "distance", distance, positive=True)
    rate = -math.log(c)
    exponents = []
    for iteration, norm in perturbations.items():
        if iteration < 0:
            raise ValueError(f"bound: perturbations are by iteration, from 0, got one at {iteration}")
        if check_number("bound", f"perturbations[{iteration}]", norm, positive=False) > 0:
            exponents.append(math.log(norm) + iteration * rate)
    total = float(np.logaddexp.reduce(exponents)) if exponents else -math.inf
    checked, violated = _held_against(observed, perturbations, c, tolerance)
    with np.errstate(over="ignore"):
        return Bound(
            iterations=float(np.logaddexp(0.0, total - math.log(distance))) / rate,
            total_perturbation=float(np.exp(total)),
            c=c,
            distance=distance,
            assumed=_ASSUMED,
            checked=checked,
            violated=violated,
        )


def _held_against(
    observed: Sequence[float] | None, perturbations: Mapping[int, float], c: float, tolerance: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if observed is None:
        return (), ()
    for k, value in enumerate(observed):
        check_number("bound", f"observed[{k}]", value, positive=False)
    steps = len(observed) - 1
    if steps < 1:
        raise ValueError(f"bound: observed needs at least two distances, got {len(observed)}")
    allowed = [c * (observed[k] + perturbations.get(k, 0.0)) for k in range(steps)]
    late = [k for k in range(steps) if observed[k + 1] > allowed[k] * (1 + tolerance)]
    checked = (f"contraction by c = {c} in each of {steps} steps",)
    if not late:
        return checked, ()
    worst = max(late, key=lambda k: observed[k + 1] / max(allowed[k], 1e-300))
    message = (
        f"{len(late)} of {steps} steps shrink the distance by less than c: worst at iteration {worst}, "
        f"{observed[worst + 1]:.6g} where at most {allowed[worst]:.6g} was expected"
    )
    return checked, (message,)
