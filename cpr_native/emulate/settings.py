"""The settings that every run of one emulation shares, and the strategies there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpr_native.config import Trackers
from cpr_native.emulate.failures import FailureSchedule
from cpr_native.models import Recipe
from cpr_native.overhead import Costs, Job, plan
from cpr_native.policy import (
    Delta,
    Drift,
    Full,
    Mfu,
    Partial,
    Policy,
    Random,
    RoundRobin,
    Scar,
    Ssu,
)

STRATEGIES = (
    "none",
    "full",
    "delta",
    "partial",
    "partial_small",
    "delta_partial",
    "mfu",
    "ssu",
    "scar",
    "drift",
    "random",
    "round_robin",
)
DEFAULT_STRATEGIES = ("none", "full", "partial", "mfu", "ssu")
"""No failures, full recovery, and the three variants of CPR."""


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """What every run of one emulation has in common.

    Args:
        job: length, MTBF and shards of the emulated job; `failed_shards` is what the planner expects.
        costs: hours of one save, load and reschedule of that job.
        schedule: the failures that every strategy but `none` meets.
        recipe: model and optimizers.
        target_pls: budget for the portion of lost samples, in (0, 1).
        fraction: rows in one priority save, in (0, 1].
        seed: of the model's initial parameters and of the rows that `random` draws.
        threads: of torch and the engine; models of this size gain little from more, and lose much where
            other programs keep the cores busy. The last bits of results depend on the number of threads.

    Raises:
        ValueError: the schedule is of another job, a value is out of range, or the planner finds no
            interval (see `cpr_native.overhead.plan`).
    """

    job: Job
    costs: Costs
    schedule: FailureSchedule
    recipe: Recipe
    target_pls: float = 0.1
    fraction: float = 0.125
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        of_schedule = (self.schedule.total_hours, self.schedule.num_shards)
        of_job = (self.job.total_hours, self.job.shards)
        if of_schedule != of_job:
            raise ValueError(
                f"schedule is of a job of (hours, shards) {of_schedule}, the emulated job has {of_job}"
            )
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], got {self.fraction}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        for fraction in (1.0, self.fraction):
            plan(self.job, self.costs, self.target_pls, fraction=fraction)

    def policy(self, strategy: str) -> Policy:
        """The policy of a strategy other than `none`.

        `partial_small` and `delta_partial` save as often as the priority policies do.

        Raises:
            ValueError: there is no such strategy.
        """
        policies: dict[str, Policy] = {
            "full": Full(),
            "delta": Delta(),
            "partial": Partial(),
            "partial_small": Partial(small_tables_fraction=self.fraction),
            "delta_partial": Delta(recovery="partial", interval_fraction=self.fraction),
            "mfu": Mfu(fraction=self.fraction),
            "ssu": Ssu(fraction=self.fraction),
            "scar": Scar(fraction=self.fraction),
            "drift": Drift(fraction=self.fraction),
            "random": Random(fraction=self.fraction, seed=self.seed),
            "round_robin": RoundRobin(fraction=self.fraction),
        }
        if strategy not in policies:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
        return policies[strategy]

    def trackers(self, strategy: str) -> Trackers:
        """The trackers that a strategy needs: the drift, which takes memory of its own, for `drift` alone."""
        return Trackers(ssu_fraction=self.fraction, drift=strategy == "drift")

    def describe(self) -> dict[str, Any]:
        """The settings as `results.json` holds them."""
        job, model = self.job, self.recipe.model
        expected = plan(job, self.costs, self.target_pls)
        return {
            "total_hours": job.total_hours,
            "mtbf_hours": job.mtbf_hours,
            "shards": job.shards,
            "failed_shards": job.failed_shards,
            "failures": [str(failure) for failure in self.schedule],
            "costs_hours": {name: value for name, value in asdict(self.costs).items() if value is not None},
            "target_pls": self.target_pls,
            "fraction": self.fraction,
            "seed": self.seed,
            "threads": self.threads,
            "overhead_percent_expected": {
                "full": expected.full.percent(job.total_hours),
                "partial": expected.partial.percent(job.total_hours),
            },
            "placement": "contiguous_rows",
            "batch_size": self.recipe.batch_size,
            "embedding_dim": model.embedding_dim,
            "bottom": list(model.bottom),
            "top": list(model.top),
            "table_optimizer": repr(self.recipe.table_optimizer),
            "dense_optimizer": f"Adagrad(lr={self.recipe.dense_lr})",
        }


def check_strategies(strategies: Sequence[str]) -> None:
    """Check that each of `strategies` exists and none is named twice.

    Raises:
        ValueError: it is not so.
    """
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not strategies or len(set(strategies)) != len(strategies):
        raise ValueError(f"strategies must be at least one, each once, got {', '.join(strategies) or 'none'}")
