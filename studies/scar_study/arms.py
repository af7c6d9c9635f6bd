"""The failures of the study: which policy saved, how often, what is lost and what is restored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpr_native.policy import Drift, Partial, Policy, Random, RoundRobin, Scar
from scar_study.forks import Restore
from scar_study.trunk import Trunk

FRACTION = 0.125
INTERVAL = 16
LOST = (0.25, 0.5, 0.75)
POLICIES = ("priority", "random", "round_robin", "traditional")
RANDOM_SEEDS = 10


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One kind of failure.

    `policy`: "priority", "random", "round_robin", "traditional" (everything every `interval` iterations) or
    "drift"; `fraction` of the blocks are saved every `fraction` * `interval` iterations; `lost`: share of the
    blocks; `of`: the parameter that they are drawn from, "" for all; `state`: what becomes of their optimizer
    state; `part`: of the study.
    """

    part: str
    policy: str
    lost: float
    fraction: float = FRACTION
    interval: int = INTERVAL
    of: str = ""
    state: Restore = "restored"

    @property
    def name(self) -> str:
        """A key of the arm."""
        shown = (
            self.part,
            self.policy,
            f"{self.lost:g}",
            f"{self.fraction:g}",
            self.interval,
            self.of,
            self.state,
        )
        return " ".join(str(each) for each in shown if each != "")

    def saves_every(self) -> int:
        """Iterations between saves."""
        return self.interval if self.policy == "traditional" else round(self.interval * self.fraction)

    def make(self, trunk: Trunk, seed: int) -> Policy:
        """Return the policy."""
        if self.policy == "priority":
            return Scar(fraction=self.fraction, distance=trunk.workload.distance)
        if self.policy == "random":
            return Random(fraction=self.fraction, seed=seed)
        if self.policy == "round_robin":
            return RoundRobin(fraction=self.fraction)
        return Drift(fraction=self.fraction) if self.policy == "drift" else Partial()


def arms_of(trunk: Trunk) -> Iterator[Arm]:
    """Return the arms of a workload."""
    workload = trunk.workload
    if workload.variant:
        for lost in (0.25, 0.5):
            for policy in ("priority", "traditional"):
                yield Arm(part="main", policy=policy, lost=lost)
            if trunk.states:
                yield Arm(part="state", policy="priority", lost=lost, state="zeroed")
        return
    for lost in LOST:
        for policy in POLICIES:
            yield Arm(part="main", policy=policy, lost=lost)
        if workload.second:
            for policy in ("priority", "traditional"):
                yield Arm(part="second", policy=policy, lost=lost, of=workload.second)
    for lost in (0.25, 0.5):
        yield Arm(part="drift", policy="drift", lost=lost)
        if trunk.states:
            yield Arm(part="state", policy="priority", lost=lost, state="zeroed")
    for fraction, interval in ((0.5, INTERVAL), (0.25, INTERVAL), (0.0625, 2 * INTERVAL)):
        for policy in ("priority", "random", "round_robin"):
            yield Arm(part="fraction", policy=policy, lost=0.5, fraction=fraction, interval=interval)
    for policy in ("priority", "traditional"):
        yield Arm(part="interval", policy=policy, lost=0.5, interval=2 * INTERVAL)
    if workload.stochastic:
        yield _NULL


_NULL = Arm(part="null", policy="traditional", lost=0.0)
NULL = _NULL.name
"""The arm that loses one block: what comes of a failure that loses next to nothing."""
FEW = ("fraction", "interval")
"""Parts with fewer trials."""


def failures(iterations: int, trials: int) -> list[int]:
    """Return after which iteration each trial fails: geometric, mean K / 2, drawn anew outside 2 <= T < K."""
    generator = np.random.default_rng(0)
    found: list[int] = []
    while len(found) < trials:
        drawn = int(generator.geometric(2.0 / iterations))
        if 2 <= drawn < iterations:
            found.append(drawn)
    return found


def rollback_cost(failed: int, interval: int) -> int:
    """Return what full recovery costs: the iterations since the last full checkpoint."""
    return failed % interval


def trials_at(failed: Sequence[int], iteration: int) -> list[int]:
    """Return the trials that fail after `iteration`."""
    return [trial for trial, at in enumerate(failed) if at == iteration]
