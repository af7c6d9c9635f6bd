"""One emulated job per strategy: train, lose shards, recover from files, evaluate, account."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cpr_native import overhead
from cpr_native.config import Trackers
from cpr_native.data import ClickBatch, auc, log_loss
from cpr_native.emulate.accounting import overhead_of, save_hours
from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.failures import Failure, FailureSchedule
from cpr_native.emulate.results import FailureRecord, Results, RunResult, SaveMark
from cpr_native.emulate.settings import STRATEGIES, Emulation, check_strategies
from cpr_native.emulate.sources import ClickSource
from cpr_native.models import DLRM, build_dlrm
from cpr_native.overhead import Overhead
from cpr_native.recovery import RecoveryManager
from cpr_native.store import CheckpointStore
from cpr_native.train import fit


class Observer(Protocol):
    """Told how an emulation proceeds."""

    def started(self, strategy: str, samples: int) -> None:
        """A run begins that trains on `samples` samples."""

    def stepped(self, strategy: str, samples: int) -> None:
        """The run stands at `samples` samples; a rollback makes that smaller."""

    def trained(self, strategy: str, model: DLRM) -> None:
        """The run has trained `model`, which is evaluated next."""


class _Silent:
    """An observer that does nothing."""

    def started(self, strategy: str, samples: int) -> None:
        pass

    def stepped(self, strategy: str, samples: int) -> None:
        pass

    def trained(self, strategy: str, model: DLRM) -> None:
        pass


def run_emulation(
    emulation: Emulation,
    source: ClickSource,
    strategies: Sequence[str] = STRATEGIES,
    *,
    checkpoints: Path | None = None,
    observer: Observer | None = None,
) -> Results:
    """Run every strategy from the same initial model on the same samples through the same failures.

    Args:
        emulation: the settings.
        source: the samples.
        strategies: which, in this order.
        checkpoints: folder for a directory per strategy, kept; None for a temporary one.
        observer: told of the progress.

    Raises:
        ValueError: a strategy does not exist or is named twice.
        FileExistsError: a directory of a strategy exists already.
        OSError: a checkpoint cannot be written or read.
    """
    check_strategies(strategies)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(emulation.threads)
        if checkpoints is None:
            checkpoints = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpr-native-")))
        runs = [
            _run_strategy(emulation, source, strategy, checkpoints / strategy, observer=observer or _Silent())
            for strategy in strategies
        ]
    return Results(data=source.describe(), config=emulation.describe(), runs=tuple(runs))


def _run_strategy(
    emulation: Emulation, source: ClickSource, strategy: str, directory: Path, *, observer: Observer
) -> RunResult:
    """Run one strategy with its checkpoints in the new directory `directory`.

    Failed shards lose their rows in memory and get them back from files. Saves are written before the next
    step, so that equal settings give equal results whatever else the machine does.

    Raises:
        ValueError: there is no such strategy.
        FileExistsError: `directory` exists.
        OSError: a checkpoint cannot be written or read.
    """
    begin = time.monotonic()
    recipe = emulation.recipe
    model = build_dlrm(
        recipe.model,
        source.table_sizes,
        optimizer=recipe.table_optimizer,
        trackers=Trackers(ssu_fraction=emulation.fraction),
        seed=emulation.seed,
    )
    dense_optimizer = recipe.dense_optimizer(model.dense_parameters())
    observer.started(strategy, source.train_samples)
    if strategy == "none":
        _train_plainly(model, dense_optimizer, source, recipe.batch_size, observer)
        outcome = _Outcome()
    else:
        outcome = _train_through_failures(
            emulation, source, strategy, model, dense_optimizer, directory, observer
        )
    observer.trained(strategy, model)
    area, loss = evaluate(model, source)
    return RunResult(
        strategy=strategy,
        seed=emulation.seed,
        auc=area,
        logloss=loss,
        overhead_percent=outcome.overhead.percent(emulation.job.total_hours),
        overhead_hours=outcome.overhead,
        pls_expected=outcome.pls_expected,
        pls=outcome.pls,
        commits=len(outcome.saves),
        bytes_written=sum(save.bytes_written for save in outcome.saves),
        failures=outcome.failures,
        seconds=round(time.monotonic() - begin, 3),
        saves=outcome.saves,
        pls_trace=outcome.pls_trace,
    )


def evaluate(model: DLRM, source: ClickSource) -> tuple[float, float]:
    """AUC and log loss of `model` on the held-out samples; the model is left in training mode."""
    labels: list[np.ndarray[Any, Any]] = []
    logits: list[np.ndarray[Any, Any]] = []
    model.eval()
    with torch.no_grad():
        for batch in source.held_out(4096):
            logits.append(model(batch.dense, batch.ids, batch.offsets).numpy())
            labels.append(batch.labels.numpy())
    model.train()
    truth, scores = np.concatenate(labels), np.concatenate(logits).astype(np.float64)
    return auc(truth, scores), log_loss(truth, scores)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What a recovery manager did in one run."""

    overhead: Overhead = field(default_factory=Overhead)
    pls_expected: float = 0.0
    pls: float = 0.0
    saves: tuple[SaveMark, ...] = ()
    failures: tuple[FailureRecord, ...] = ()
    pls_trace: tuple[tuple[float, float], ...] = ()


class _Failures:
    """A callback of `fit` that lets each failure of the schedule strike once, at its sample."""

    def __init__(self, schedule: FailureSchedule, clock: VirtualClock, manager: RecoveryManager) -> None:
        self._pending: list[Failure] = list(schedule)
        self._clock = clock
        self._manager = manager

    def __call__(self, step: int, loss: float) -> None:
        while self._pending and self._manager.samples >= self._clock.samples(self._pending[0].hour):
            self._manager.recover(self._pending.pop(0).shards)


def _loss(model: nn.Module, batch: ClickBatch) -> torch.Tensor:
    logits = model(batch.dense, batch.ids, batch.offsets)
    return functional.binary_cross_entropy_with_logits(logits, batch.labels)


def _train_plainly(
    model: DLRM,
    dense_optimizer: torch.optim.Optimizer,
    source: ClickSource,
    batch_size: int,
    observer: Observer,
) -> None:
    """One pass of a plain PyTorch loop: what a full recovery has to equal bit for bit."""
    samples = 0
    for batch in source.train(batch_size):
        dense_optimizer.zero_grad()
        torch.autograd.backward(_loss(model, batch))
        dense_optimizer.step()
        samples += len(batch)
        observer.stepped("none", samples)


def _train_through_failures(
    emulation: Emulation,
    source: ClickSource,
    strategy: str,
    model: DLRM,
    dense_optimizer: torch.optim.Optimizer,
    directory: Path,
    observer: Observer,
) -> _Outcome:
    clock = VirtualClock(total_samples=source.train_samples, total_hours=emulation.job.total_hours)
    loader = source.train(emulation.recipe.batch_size)
    directory.mkdir(parents=True)
    manager = RecoveryManager(
        model,
        CheckpointStore(directory),
        policy=emulation.policy(strategy),
        job=emulation.job,
        costs=emulation.costs,
        total_samples=source.train_samples,
        target_pls=emulation.target_pls,
        dense_optimizer=dense_optimizer,
        background=False,
    )
    with manager:
        fit(
            model,
            loader,
            manager,
            loss_fn=_loss,
            dense_optimizer=dense_optimizer,
            batch_size_of=len,
            callbacks=(
                lambda step, loss: observer.stepped(strategy, manager.samples),
                _Failures(emulation.schedule, clock, manager),
            ),
            resume=False,
        )
    return _outcome(emulation, clock, manager, sum(source.table_sizes))


def _outcome(emulation: Emulation, clock: VirtualClock, manager: RecoveryManager, rows: int) -> _Outcome:
    dim = emulation.recipe.model.embedding_dim
    size = {"total_rows": rows, "row_bytes": 8 + 4 * dim + 4 + 4}  # id, weight, optimizer state, counter
    records, trace, pls = [], [], 0.0
    for failure, recovery in zip(emulation.schedule, manager.recoveries, strict=True):
        pls += recovery.pls
        trace.append((failure.hour, pls))
        records.append(
            FailureRecord(
                hour=failure.hour,
                shards=failure.shards,
                rows_restored=recovery.rows_restored,
                lost_lookups=recovery.lost_lookups,
                mode=recovery.mode,
            )
        )
    marks = [
        SaveMark(
            hour=clock.hours(save.samples),
            kind=save.kind,
            bytes_written=save.bytes_written,
            cost_hours=save_hours(save, emulation.costs, **size),
        )
        for save in manager.saves
    ]
    partial = manager.policy.recovery == "partial"
    interval = manager.plan.partial_interval_hours
    return _Outcome(
        overhead=overhead_of(manager.saves, manager.recoveries, emulation.costs, **size),
        pls_expected=overhead.expected_pls(emulation.job, interval) if partial else 0.0,
        pls=manager.pls,
        saves=tuple(marks),
        failures=tuple(records),
        pls_trace=tuple(trace),
    )
