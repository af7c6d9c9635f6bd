"""Random, adversarial and reset perturbations of a run with one optimum, against the paper's bound."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch

from cpr_native.iteration_cost import bound, contraction_of_steps
from scar_study.blocks import bounds, draw_lost
from scar_study.crossing import Floats, crossing
from scar_study.forks import Fork, Stack, distance
from scar_study.trunk import Arrays, Trunk

KINDS = ("random", "adversarial", "reset")
FAR = 20
"""The optimum is taken from an iterate after so many times K iterations."""


def optimum(trunk: Trunk) -> Arrays:
    """Return where the run goes to, [elements] of each parameter."""
    model = trunk.workload.model(1)
    optimizer = trunk.workload.optimizer(model)
    for number in range(FAR * trunk.iterations):
        trunk.workload.step(model, optimizer, number)
    return {
        name: parameter.detach().numpy().reshape(-1).copy() for name, parameter in model.named_parameters()
    }


def compared(trunk: Trunk, count: int) -> dict[str, Any]:
    """Return `count` perturbations of each kind after K / 2 iterations: their costs and the bound.

    The cost is in iterations until the distance from the optimum is that of the trunk after K iterations,
    which is what the bound speaks of, and beside it until the objective is. c is the largest factor by which
    a step of the trunk shrinks that distance.
    """
    best = optimum(trunk)
    far = [_far(trunk.weights, best, k) for k in range(trunk.iterations + 1)]
    c = max(after / before for before, after in itertools.pairwise(far))
    at = trunk.iterations // 2
    shifts = [(kind, _shift(trunk, best, at, kind, number)) for kind in KINDS for number in range(count)]
    found = _costs(trunk, at, [shift for _, shift in shifts], best, far[-1])
    points = []
    for (kind, shift), (by_distance, by_objective) in zip(shifts, found, strict=True):
        size = distance(trunk, {n: a[at] + shift[n] for n, a in trunk.weights.items()}, at)
        limit = bound({at: size}, c=c, distance=far[0])
        points.append({
            "kind": kind, "norm": size, "relative": size / far[at], "cost": by_distance,
            "objective_cost": by_objective, "bound": limit.iterations,
        })  # fmt: skip
    steps = [_step(trunk, k) for k in range(trunk.iterations + 1)]
    estimate = contraction_of_steps(steps)
    return {
        "points": points, "c": c, "distance": far[0], "left": far[-1] / far[0], "iteration": at,
        "estimate": {"supported": estimate.supported, "reason": estimate.reason,
                     "c": estimate.c.value if estimate.supported else None},
    }  # fmt: skip


def _shift(trunk: Trunk, best: Arrays, at: int, kind: str, number: int) -> Arrays:
    generator = np.random.default_rng((2, number, KINDS.index(kind)))
    if kind == "reset":
        share = float(generator.uniform(0.05, 1.0))
        lost = draw_lost(trunk.tables, (share,), (3, number), aligned=trunk.workload.aligned)[share]
        begin = np.zeros(bounds(trunk.tables)[-1].stop, np.int32)
        reset = Fork(lost=lost, saved=begin).weights(trunk, at)
        return {name: reset[name] - trunk.weights[name][at] for name in reset}
    size = _far(trunk.weights, best, at) * 10.0 ** generator.uniform(-2.0, 0.0)
    if kind == "random":
        drawn = {name: generator.standard_normal(len(array)) for name, array in best.items()}
    else:
        drawn = {name: trunk.weights[name][at].astype(np.float64) - array for name, array in best.items()}
    length = math.sqrt(sum(float(array @ array) for array in drawn.values()))
    return {name: (size / length * array).astype(np.float32) for name, array in drawn.items()}


def _costs(
    trunk: Trunk, at: int, shifts: list[Arrays], best: Arrays, near: float
) -> list[tuple[float | None, float | None]]:
    """Return each perturbation's extra iterations by distance and by objective."""
    nothing = np.zeros(bounds(trunk.tables)[-1].stop, np.int32)
    forks = [Fork(lost=nothing > 0, saved=nothing, shift=shift) for shift in shifts]
    weights = [fork.weights(trunk, at) for fork in forks]
    stack = Stack(trunk, at, weights, [fork.states(trunk, at) for fork in forks])
    distances: list[Floats] = [_distances(stack, best)]
    objectives: list[Floats] = []
    while stack.number < 3 * trunk.iterations:
        objectives.append(stack.step())
        if (distances[-1] <= near).all() and (objectives[-1] <= trunk.target).all():
            break
        distances.append(_distances(stack, best))
    found = []
    for run in range(len(forks)):
        series = [np.array([each[run] for each in values]) for values in (distances, objectives)]
        crossed = [
            crossing(values, target, 0, stochastic=False)
            for values, target in zip(series, (near, trunk.target), strict=True)
        ]
        by_distance, by_objective = (None if x is None else x + at - trunk.iterations for x in crossed)
        found.append((by_distance, by_objective))
    return found


def _distances(stack: Stack, best: Arrays) -> Floats:
    total: Floats = np.zeros(1)
    for name, parameter in stack.model.named_parameters():
        there = torch.from_numpy(best[name])
        total = total + (parameter.detach().flatten(1) - there).double().square().sum(1).numpy()
    far: Floats = np.sqrt(total)
    return far


def _far(weights: Arrays, best: Arrays, k: int) -> float:
    squares = (np.square(array[k].astype(np.float64) - best[name]).sum() for name, array in weights.items())
    return math.sqrt(sum(float(square) for square in squares))


def _step(trunk: Trunk, k: int) -> float:
    squares = (np.square((a[k + 1] - a[k]).astype(np.float64)).sum() for a in trunk.weights.values())
    return math.sqrt(sum(float(square) for square in squares))
