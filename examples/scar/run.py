"""Trains a workload as a job of several shards, some of which it loses and recovers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

import cpr_native as cpr
from scar.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`objective`: after 0, 1, ... iterations; `restored_rows`: blocks that went back; `saves`: committed."""

    objective: list[float]
    restored_rows: int
    saves: int


def train(
    workload: Workload, model: torch.nn.Module, folder: Path, *, iterations: int, fraction: float = 0.125,
    interval: int = 16, shards: int = 8, failures: Mapping[int, Sequence[int]] | None = None,
    target: float | None = None,
) -> Outcome:  # fmt: skip
    """Train `model` for `iterations`, or to the objective `target`, with checkpoints in `folder`.

    The `fraction` of the blocks that are farthest from their last saved copy is saved every
    `fraction * interval` iterations. `failures`: shards that are lost after an iteration.
    """
    optimizer = workload.optimizer(model)
    objective = [_objective(workload, model)]
    rows = 0
    with (
        cpr.attach(model, blocks=workload.blocks, optimizer=optimizer or ()),
        cpr.RecoveryManager(
            model,
            cpr.CheckpointStore(folder),
            policy=workload.policy(fraction),
            # An hour of the plan is an iteration here: this target makes its T_save the interval.
            job=cpr.Job(total_hours=iterations, mtbf_hours=iterations / 2, shards=shards),
            target_pls=interval / (shards * iterations),
            costs=cpr.Costs(save=0.01, load=0.01, reschedule=0.01),
            total_samples=iterations,
            background=False,
        ) as manager,
    ):
        manager.start()
        for number in range(iterations):
            workload.step(model, optimizer, number)
            manager.step(1)
            failed = (failures or {}).get(number + 1)
            if failed:
                rows += manager.recover(failed).rows_restored
            objective.append(_objective(workload, model))
            if target is not None and number + 1 > max(failures or {0: ()}) and objective[-1] <= target:
                break
    return Outcome(objective=objective, restored_rows=rows, saves=len(manager.saves))


@torch.no_grad()
def _objective(workload: Workload, model: torch.nn.Module) -> float:
    return float(workload.objective(model))


def command(makers: Mapping[str, Callable[[Path | None], Workload]]) -> click.Command:
    """Return the command of a script with workloads on several data sets."""
    names = list(makers)

    @click.command()
    @click.argument("dataset", type=click.Choice(names), default=names[0])
    @click.option("--data", type=click.Path(exists=True, path_type=Path), default=None,
                  help="The data set's file or folder; without it data are generated.")  # fmt: skip
    @click.option("--at", type=click.IntRange(min=1), default=None, show_default="K / 2",
                  help="After which iteration shards are lost.")  # fmt: skip
    @click.option("--lost", type=click.IntRange(1, 8), default=4, show_default=True, help="Of 8 shards.")
    def main(dataset: str, data: Path | None, at: int | None, lost: int) -> None:
        """Train without and with a failure, and say what it cost in iterations."""
        workload = makers[dataset](data)
        last = workload.iterations
        failed = at or last // 2
        with tempfile.TemporaryDirectory() as folder:
            plain = train(workload, workload.model(), Path(folder) / "plain", iterations=last)
            target = plain.objective[-1]
            met = train(
                workload, workload.model(), Path(folder) / "met", iterations=2 * last,
                failures={failed: range(lost)}, target=target,
            )  # fmt: skip
        there = f"{plain.objective[0]:.5g} -> {target:.5g} in {last} iterations"
        print(f"{workload.name} on {dataset}, objective {there}")
        print(
            f"lost {lost} of 8 shards after {failed}: {met.restored_rows} blocks restored, {met.saves} saves"
        )
        if met.objective[-1] > target:
            print(f"not there after {2 * last} iterations")
        else:
            there = f"there after {len(met.objective) - 1} iterations"
            print(f"{there}; full recovery would take {last + failed % 16}")

    return main
