"""What `demo` and `emulate` do: settings from options, runs with a progress bar, table and files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from cpr_native.cli.output import console, new_table, print_json, usage_errors
from cpr_native.emulate.units import human_bytes

if TYPE_CHECKING:
    from cpr_native.emulate.failures import Failure, FailureSchedule, Times
    from cpr_native.emulate.results import Results
    from cpr_native.emulate.settings import Emulation
    from cpr_native.emulate.sources import ClickSource

DEMO_SAMPLES = 1_000_000
# A failure costs full recovery half an interval on average, and by luck anything from nothing to a whole one.
# The two failures of this seed cost about the mean: the demo shows the overhead and the PLS to expect.
TYPICAL_SEED = 3
_GENERATED_SCALE = 0.01
_FILE_MAX_ROWS = 100_000
_OPTIONS = {
    "total_hours": "--hours",
    "mtbf_hours": "--mtbf",
    "mtbf": "--mtbf",
    "save": "--save-cost",
    "save_fixed": "--save-fixed-cost",
    "load": "--load-cost",
    "reschedule": "--reschedule-cost",
    "target_pls": "--target-pls",
    "fraction": "--fraction",
    "lost_fraction": "--lost-fraction",
    "gamma_shape": "--gamma-shape",
    "scale": "--scale",
    "max_rows": "--max-rows",
}


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `demo` and `emulate` with their defaults; costs are of CPR's Kaggle emulation."""

    data: Path | None = None
    samples: int | None = None
    seed: int = TYPICAL_SEED
    strategies: tuple[str, ...] = ("none", "full", "partial", "mfu", "ssu")
    shards: int = 8
    threads: int = 1
    failures: int = 2
    checkpoints: Path | None = None
    on_error: Literal["skip", "raise"] = "skip"
    given: tuple[Failure, ...] = ()
    times: Times = "stratified"
    gamma_shape: float = 1.0
    lost_fraction: float = 0.125
    hours: float = 56.0
    mtbf: float | None = None
    save_cost: float = 0.094
    save_fixed_cost: float = 0.0
    load_cost: float = 0.045
    reschedule_cost: float = 0.045
    target_pls: float = 0.1
    fraction: float = 0.125
    scale: float | None = None
    max_rows: int | None = None
    batch_size: int | None = None
    out: Path | None = None


def execute(request: Request, *, as_json: bool) -> None:
    """Run the emulation that `request` describes, print its table or JSON, write its files.

    Raises:
        click.UsageError: an option is out of range or does not fit the others; nothing was written.
        ValueError: the data file is damaged.
        OSError: a file cannot be read or written.
        ModuleNotFoundError: a report is wanted but the extra `demo` is not installed.
    """
    from cpr_native.emulate.report import require_demo_extra, write_report
    from cpr_native.emulate.results import write_results
    from cpr_native.emulate.runner import run_emulation
    from cpr_native.emulate.settings import check_strategies

    with usage_errors():
        check_strategies(request.strategies)
    emulation = _emulation(request)
    if request.out is not None:
        require_demo_extra()
        _check_folder(request.out, "--out")
    if request.checkpoints is not None:
        _check_folder(request.checkpoints, "--checkpoints")
        _check_fresh(request.checkpoints, request.strategies)
    source = _source(request)
    with _progress() as progress:
        observer = _Bar(progress, request.strategies, source.train_samples)
        results = run_emulation(
            emulation, source, request.strategies, checkpoints=request.checkpoints, observer=observer
        )
    if as_json:
        print_json(results.to_dict())
    else:
        _print(results)
    if request.out is not None:
        write_results(results, request.out / "results.json")
        write_report(results, request.out / "report.html")
        names = f"{request.out / 'results.json'} and {request.out / 'report.html'}"
        click.echo(f"Written: {names}", err=as_json)


def _emulation(request: Request) -> Emulation:
    from cpr_native.emulate.settings import Emulation
    from cpr_native.models import CRITEO, DEMO
    from cpr_native.overhead import Costs, Job

    recipe = DEMO if request.data is None else CRITEO
    with usage_errors(**_OPTIONS):
        schedule = _schedule(request)
        lost = [len(failure.shards) for failure in schedule]
        return Emulation(
            job=Job(
                total_hours=request.hours, mtbf_hours=_mtbf(request), shards=request.shards,
                failed_shards=max(lost, default=1),
            ),
            costs=Costs(
                save=request.save_cost, save_fixed=request.save_fixed_cost, load=request.load_cost,
                reschedule=request.reschedule_cost,
            ),
            schedule=schedule,
            recipe=recipe if request.batch_size is None else replace(recipe, batch_size=request.batch_size),
            target_pls=request.target_pls,
            fraction=request.fraction,
            seed=request.seed,
            threads=request.threads,
        )  # fmt: skip


def _schedule(request: Request) -> FailureSchedule:
    from cpr_native.emulate.failures import draw_failures, given_failures

    if request.given:
        return given_failures(request.given, total_hours=request.hours, num_shards=request.shards)
    return draw_failures(
        request.seed,
        total_hours=request.hours,
        num_shards=request.shards,
        count=request.failures,
        lost_fraction=request.lost_fraction,
        times=request.times,
        mtbf=_mtbf(request),
        gamma_shape=request.gamma_shape,
    )


def _mtbf(request: Request) -> float:
    """The MTBF that the planner is told: the option, or what the number of failures says."""
    if request.mtbf is not None:
        return request.mtbf
    if request.times in ("exponential", "gamma") and not request.given:
        return 28.0
    return request.hours / max(1, len(request.given) or request.failures)


def _source(request: Request) -> ClickSource:
    from cpr_native.data import hashed_table_sizes, kaggle_table_sizes
    from cpr_native.emulate.sources import CriteoSource, GeneratedSource

    if request.data is None:
        with usage_errors(**_OPTIONS):
            scale = _GENERATED_SCALE if request.scale is None else request.scale
            sizes = kaggle_table_sizes(scale, max_rows=request.max_rows)
            samples = DEMO_SAMPLES if request.samples is None else request.samples
            return GeneratedSource(samples=samples, table_sizes=sizes, seed=request.seed)
    with usage_errors(**_OPTIONS):
        most = _FILE_MAX_ROWS if request.max_rows is None else request.max_rows
        sizes = hashed_table_sizes(1.0 if request.scale is None else request.scale, max_rows=most)
    source = CriteoSource(request.data, table_sizes=sizes, lines=request.samples, on_error=request.on_error)
    if source.damaged:
        lines = f"{source.damaged} damaged line{'s' * (source.damaged != 1)} left out"
        click.echo(f"{lines}, the first: {source.damaged_examples[0]}", err=True)
    return source


def _check_folder(folder: Path, option: str) -> None:
    """Make `folder` unless it is there, so that a long run does not end without a place for its results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _bad(option, f"{folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _bad(option, f"{folder}: {os.strerror(errno.EACCES)}")


def _check_fresh(folder: Path, strategies: Sequence[str]) -> None:
    for strategy in strategies:
        if os.path.lexists(folder / strategy):
            raise _bad("--checkpoints", f"{folder / strategy} exists; give a new folder or remove it")


def _bad(option: str, message: str) -> click.BadParameter:
    return click.BadParameter(message, click.get_current_context(silent=True), param_hint=f"'{option}'")


class _Bar:
    """An `Observer` that shows one bar over all runs."""

    def __init__(self, progress: Progress, strategies: Sequence[str], samples: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=samples * len(strategies))
        self._strategies = tuple(strategies)
        self._samples = samples

    def started(self, strategy: str, samples: int) -> None:
        self.stepped(strategy, 0)

    def stepped(self, strategy: str, samples: int) -> None:
        done = self._strategies.index(strategy)
        label = f"{strategy} ({done + 1} of {len(self._strategies)})"
        self._progress.update(self._task, description=label, completed=done * self._samples + samples)

    def trained(self, strategy: str, model: object) -> None:
        self._progress.update(self._task, description=f"{strategy}: evaluating")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
    )


def results_table(results: Results) -> Table:
    """The one table of a run: at most 100 columns wide."""
    hours = float(results.config["total_hours"])
    table = new_table()
    table.add_column("\nstrategy")
    for name in ("\nAUC", "log\nloss", "overhead\n%", "save\n%", "load\n%", "lost\n%", "resch.\n%",
                 "PLS\nexp.", "PLS\nreal.", "\ncommits", "\nwritten"):  # fmt: skip
        table.add_column(name, justify="right")
    for run in results.runs:
        table.add_row(
            run.strategy,
            f"{run.auc:.4f}",
            f"{run.logloss:.4f}",
            f"{run.overhead_percent:.2f}",
            *(f"{100 * part / hours:.2f}" for part in asdict(run.overhead_hours).values()),
            f"{run.pls_expected:.4f}",
            f"{run.pls:.4f}",
            str(run.commits),
            human_bytes(run.bytes_written),
        )
    return table


def _print(results: Results) -> None:
    config = results.config
    failures = ", ".join(config["failures"])
    out = console()
    out.print(results_table(results))
    out.print(
        Text(
            f"{config['total_hours']:g} emulated hours, failures (hour:shards) {failures or 'none'}; "
            "PLS: portion of lost samples."
        )
    )
