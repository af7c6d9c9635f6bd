"""One seed of a set-up: a trunk up to the first failure, and from there a fork for every case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.config import Trackers
from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.failures import Failure
from cpr_native.policy import Policy
from cpr_study.setups import Samples, SetUp
from cpr_study.shadow import Shadow, lost_rows
from cpr_study.trainee import Trainee

PERTURBATION = 1e-6


@dataclass(frozen=True, kw_only=True)
class Case:
    """One policy through the failures of a run.

    `hours`: between its saves; `trackers`: of an SSU policy; `state`: what becomes of the optimizer state of
    lost rows (`Shadow.recover`).
    """

    policy: Policy
    hours: float
    trackers: Trackers | None = None
    state: str = "restored"


@dataclass(kw_only=True)
class _Fork:
    trainee: Trainee
    shadow: Shadow | None
    case: Case | None
    losses: list[float] = field(default_factory=list)
    failures: list[dict[str, float]] = field(default_factory=list)


class Run:
    """Trains one seed of `setup` through `failures`, at least one, under every case.

    The cases share the trunk, which a failure has not met yet; the model without failures goes on with it.
    """

    def __init__(
        self,
        setup: SetUp,
        samples: Samples,
        *,
        seed: int,
        cases: Mapping[str, Case],
        failures: Sequence[Failure],
        shards: int,
        noise: bool = False,
    ) -> None:
        self._setup, self._samples, self._seed = setup, samples, seed
        self._cases, self._shards, self._noise = cases, shards, noise
        self._clock = VirtualClock(total_samples=samples.count, total_hours=setup.job.total_hours)
        self._strikes = [self._strike(failure) for failure in failures]

    def _strike(self, failure: Failure) -> tuple[int, tuple[int, ...]]:
        """Return after how many steps a failure strikes, and the shards it takes."""
        trained = 0
        for step, batch in enumerate(self._samples.train, start=1):
            trained += len(batch)
            if trained >= self._clock.samples(failure.hour):
                return step, failure.shards
        raise ValueError(f"failure {failure} comes after the last sample")

    def __call__(self) -> dict[str, Any]:
        """Return the records of all cases (see `_record`), and those of no failure and of the noise."""
        trunk = Trainee(self._setup, self._samples.table_sizes, self._seed)
        shadows = {
            name: Shadow(
                case.policy, trunk, seed=self._seed, sampling=case.trackers,
                interval=max(1, round(case.hours * self._samples.count / self._setup.job.total_hours)),
            )
            for name, case in self._cases.items()
        }  # fmt: skip
        first = self._strikes[0][0]
        trained = 0
        for batch in self._samples.train[:first]:
            trunk.step(batch)
            before, trained = trained, trained + len(batch)
            for shadow in shadows.values():
                shadow.trained(batch)
                shadow.passed(trunk, before, trained)
        records: dict[str, Any] = {}
        for name, case in self._cases.items():
            fork = _Fork(trainee=trunk.copy(), shadow=shadows.pop(name), case=case)
            records[name] = self._finish(fork, first, trained)
        if self._noise:
            noisy = trunk.copy()
            noisy.perturb_dense(PERTURBATION, self._seed)
            records["noise"] = self._finish(_Fork(trainee=noisy, shadow=None, case=None), first, trained)
        records["none"] = self._finish(_Fork(trainee=trunk, shadow=None, case=None), first, trained)
        return {"seed": self._seed, "first": first, "samples": trained, "cases": self._compared(records)}

    def _finish(self, fork: _Fork, first: int, trained: int) -> dict[str, Any]:
        """Train a fork from the first failure to the end."""
        step = first
        strikes = list(self._strikes)
        while True:
            while strikes and strikes[0][0] <= step:
                self._fail(fork, strikes.pop(0)[1], trained)
            if step == len(self._samples.train):
                break
            batch = self._samples.train[step]
            fork.losses.append(fork.trainee.step(batch))
            before, trained, step = trained, trained + len(batch), step + 1
            if fork.shadow is not None:
                fork.shadow.trained(batch)
                fork.shadow.passed(fork.trainee, before, trained)
        area, loss = fork.trainee.evaluate(self._samples)
        return {
            "auc": area, "logloss": loss, "losses": np.array(fork.losses), "failures": fork.failures,
            "bytes_written": 0 if fork.shadow is None else fork.shadow.bytes_written,
            "rows_written": 0 if fork.shadow is None else fork.shadow.rows_written,
            "saves": 0 if fork.shadow is None else fork.shadow.saves,
        }  # fmt: skip

    def _fail(self, fork: _Fork, shards: tuple[int, ...], trained: int) -> None:
        if fork.shadow is None or fork.case is None:
            return
        lost = lost_rows(self._samples.table_sizes, self._shards, shards)
        record = fork.shadow.loss(fork.trainee, lost)
        share = len(shards) / self._shards
        record["pls"] = share * (trained - fork.shadow.saved_samples) / self._samples.count
        record["samples"] = trained
        record["lookups_so_far"] = len(self._samples.table_sizes) * trained
        fork.failures.append(record)
        fork.shadow.recover(fork.trainee, lost, state=fork.case.state)

    def _compared(self, records: dict[str, Any]) -> dict[str, Any]:
        """Replace the losses of each record by their excess over those without failures.

        `progressive`: mean over all samples since the first failure of the log loss before a batch is
        trained on, less that without failures; `progressive_tenths`: its part in each tenth of that time.
        """
        plain: NDArray[np.float64] = records["none"]["losses"]
        sizes = np.array([len(batch) for batch in self._samples.train[-len(plain) :]] if len(plain) else [])
        for record in records.values():
            excess = (record.pop("losses") - plain) * sizes
            total = max(1, int(sizes.sum()))
            record["progressive"] = float(excess.sum()) / total
            record["progressive_tenths"] = [float(p.sum()) / total for p in np.array_split(excess, 10)]
        return records
