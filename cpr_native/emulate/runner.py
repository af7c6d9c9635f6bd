"""One emulated job per strategy: train, lose shards, recover from files, evaluate, account."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cpr_native.data import ClickBatch, auc, log_loss
from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.failures import Failure, FailureSchedule
from cpr_native.emulate.outcome import Outcome, outcome_of
from cpr_native.emulate.recorder import RowRecorder
from cpr_native.emulate.results import Results, RunResult
from cpr_native.emulate.rows import RowAge
from cpr_native.emulate.settings import DEFAULT_STRATEGIES, Emulation, check_strategies
from cpr_native.emulate.sources import ClickSource
from cpr_native.models import DLRM, build_dlrm
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
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
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
        trackers=emulation.trackers(strategy),
        seed=emulation.seed,
    )
    dense_optimizer = recipe.dense_optimizer(model.dense_parameters())
    observer.started(strategy, source.train_samples)
    if strategy == "none":
        _train_plainly(model, dense_optimizer, source, recipe.batch_size, observer)
        outcome = Outcome()
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
        rows_saved=outcome.rows_saved,
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


class _Failures:
    """A callback of `fit` that lets each failure of the schedule strike once, at its sample.

    `recorder` is told of commits before that, and `ages` are those of the rows that went back.
    """

    def __init__(
        self, schedule: FailureSchedule, clock: VirtualClock, manager: RecoveryManager, recorder: RowRecorder
    ) -> None:
        self._pending: list[Failure] = list(schedule)
        self._clock = clock
        self._manager = manager
        self._recorder = recorder
        self.ages: list[RowAge] = []

    def __call__(self, step: int, loss: float) -> None:
        self._recorder.saved(self._manager.saves)
        while self._pending and self._manager.samples >= self._clock.samples(self._pending[0].hour):
            recovery = self._manager.recover(self._pending.pop(0).shards)
            self.ages.append(self._recorder.age(recovery, self._manager.shards))


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
) -> Outcome:
    clock = VirtualClock(total_samples=source.train_samples, total_hours=emulation.job.total_hours)
    loader = source.train(emulation.recipe.batch_size)
    directory.mkdir(parents=True)
    store = CheckpointStore(directory)
    manager = RecoveryManager(
        model,
        store,
        policy=emulation.policy(strategy),
        job=emulation.job,
        costs=emulation.costs,
        total_samples=source.train_samples,
        target_pls=emulation.target_pls,
        dense_optimizer=dense_optimizer,
        background=False,
    )
    recorder = RowRecorder(store, source.table_sizes, clock)
    failures = _Failures(emulation.schedule, clock, manager, recorder)

    def loss_of(module: nn.Module, batch: ClickBatch) -> torch.Tensor:
        recorder.trains(batch, manager.samples)
        return _loss(module, batch)

    with manager:
        fit(
            model,
            loader,
            manager,
            loss_fn=loss_of,
            dense_optimizer=dense_optimizer,
            batch_size_of=len,
            callbacks=(lambda step, loss: observer.stepped(strategy, manager.samples), failures),
            resume=False,
        )
    recorder.saved(manager.saves)
    return outcome_of(
        emulation,
        clock,
        manager,
        rows=sum(source.table_sizes),
        ages=failures.ages,
        rows_saved=recorder.times_saved(),
    )
