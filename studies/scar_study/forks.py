"""Runs that go on from one iterate of the trunk, each with a failure of its own, trained as one stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from scar_study.blocks import Mask, bounds
from scar_study.crossing import WINDOW, Floats, crossing
from scar_study.trunk import Arrays, Trunk, state_of

Restore = Literal["restored", "zeroed"]
LONGEST = 4
"""A fork that hasn't reached the target after so many times K iterations is given up."""


@dataclass(frozen=True, kw_only=True)
class Fork:
    """A failure after `Forks.iteration` iterations.

    `lost`: blocks that go back, [blocks]; `saved`: to their values after so many iterations, [blocks];
    `state`: what becomes of their optimizer state; `shift`: added to the weights beside that, by parameter.
    """

    lost: Mask
    saved: NDArray[np.int32]
    state: Restore = "restored"
    shift: Arrays | None = None

    def weights(self, trunk: Trunk, iteration: int) -> Arrays:
        """Return the parameters after the failure, [elements] each."""
        found = _recovered(trunk, trunk.weights, self, iteration, "")
        for name, shift in (self.shift or {}).items():
            found[name] = found[name] + shift
        return found

    def states(self, trunk: Trunk, iteration: int) -> Arrays:
        """Return the optimizer's state after the failure, [elements] each."""
        found: Arrays = {}
        for key in trunk.states:
            column = key.split("/")[1]
            sources = {
                name.split("/")[0]: array
                for name, array in trunk.states.items()
                if name.endswith(f"/{column}")
            }
            found |= {
                f"{n}/{column}": a for n, a in _recovered(trunk, sources, self, iteration, self.state).items()
            }
        return found


def _recovered(trunk: Trunk, sources: Arrays, fork: Fork, iteration: int, state: str) -> Arrays:
    found = {name: array[iteration].copy() for name, array in sources.items()}
    for blocks, place in zip(trunk.tables, bounds(trunk.tables), strict=True):
        if blocks.name not in sources:
            continue
        rows = np.flatnonzero(fork.lost[place])
        values = blocks.of(found[blocks.name])
        if state == "zeroed":
            values[rows] = 0.0
        else:
            values[rows] = blocks.of(sources[blocks.name])[fork.saved[place][rows], rows]
    return found


def distance(trunk: Trunk, weights: Arrays, iteration: int) -> float:
    """Return how far `weights` are from the trunk's after `iteration` iterations."""
    squares = (np.square(weights[n] - a[iteration], dtype=np.float64).sum() for n, a in trunk.weights.items())
    return float(np.sqrt(sum(squares)))


class Stack:
    """A model of several runs in lockstep, from `iteration` of the trunk on."""

    def __init__(
        self, trunk: Trunk, iteration: int, weights: Sequence[Arrays], states: Sequence[Arrays]
    ) -> None:
        self.workload = trunk.workload
        self.model = self.workload.model(len(weights))
        self.optimizer = self.workload.optimizer(self.model)
        self.number = iteration
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(_stack(weights, name, parameter.shape))
                if self.optimizer is not None and iteration > 0:
                    self._set_state(name, parameter, states)

    def _set_state(self, name: str, parameter: torch.nn.Parameter, states: Sequence[Arrays]) -> None:
        columns = [key.split("/")[1] for key in states[0] if key.split("/")[0] == name]
        if not columns:
            return
        assert self.optimizer is not None
        entries = {column: _stack(states, f"{name}/{column}", parameter.shape) for column in columns}
        if "exp_avg" in entries:
            entries["step"] = torch.tensor(float(self.number))
        self.optimizer.state[parameter] = entries

    def step(self) -> Floats:
        """Do the next step of every run; return their objectives before it."""
        full = getattr(self.workload, "full", False)
        before = None if full else self.objective()
        found = self.workload.step(self.model, self.optimizer, self.number)
        self.number += 1
        if before is None:
            assert found is not None
            before = found.numpy().astype(np.float64)
        return before

    def objective(self) -> Floats:
        """Return the objective of every run."""
        with torch.no_grad():
            return self.workload.objective(self.model).numpy().astype(np.float64)

    def keep(self, runs: NDArray[np.int64]) -> None:
        """Go on with `runs` alone."""
        chosen = torch.from_numpy(runs)
        for parameter in self.model.parameters():
            kept = {name: entry[chosen] for name, entry in state_of(self.optimizer, parameter).items()}
            parameter.data = parameter.data[chosen]
            parameter.grad = None
            if kept:
                assert self.optimizer is not None
                self.optimizer.state[parameter].update(kept)


def _stack(arrays: Sequence[Arrays], name: str, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(np.stack([each[name] for each in arrays])).view(shape)


def run(trunk: Trunk, iteration: int, forks: Sequence[Fork]) -> list[float | None]:
    """Return the iteration cost of every failure after `iteration` iterations; None where it is too long.

    That is the iteration at which the run has reached the trunk's target, less that at which the trunk has.
    """
    weights = [fork.weights(trunk, iteration) for fork in forks]
    stack = Stack(trunk, iteration, weights, [fork.states(trunk, iteration) for fork in forks])
    return costs(trunk, iteration, stack, len(forks))


def costs(trunk: Trunk, iteration: int, stack: Stack, count: int) -> list[float | None]:
    """Train `stack`, of `count` runs, until each has reached the target; return what `run` does."""
    values = [list(trunk.objective[:iteration]) for _ in range(count)]
    found: list[float | None] = [None] * count
    active = np.arange(count)
    while len(active) and stack.number <= LONGEST * trunk.iterations:
        left = []
        for place, (number, value) in enumerate(zip(active, stack.step(), strict=True)):
            values[number].append(float(value))
            at = _reached(np.array(values[number]), trunk, iteration)
            if at is None:
                left.append(place)
            else:
                found[number] = at - trunk.reached
        if len(left) < len(active):
            active = active[left]
            if left:
                stack.keep(np.array(left))
    return found


def _reached(values: Floats, trunk: Trunk, iteration: int) -> float | None:
    stochastic = trunk.workload.stochastic
    if (np.median(values[-WINDOW:]) if stochastic else values[-1]) > trunk.target:
        return None
    return crossing(values, trunk.target, iteration, stochastic=stochastic)
