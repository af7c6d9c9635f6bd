"""`cpr-native demo` and `cpr-native emulate`: train through failures, show and write what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cpr_native.cli.output import json_option, usage_errors
from cpr_native.cli.request import DEMO_SAMPLES, Request, execute

if TYPE_CHECKING:
    from cpr_native.emulate.failures import Failure

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULTS = Request()


def _option(name: str, help_text: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option of `Request`'s field of the same name and with its default."""
    field = name.removeprefix("--").replace("-", "_")
    default = getattr(_DEFAULTS, field)
    settings.setdefault("show_default", default is not None)
    return click.option(name, field, default=default, help=help_text, **settings)


def _split(
    context: click.Context, parameter: click.Parameter, value: str | tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(value.split(",")) if isinstance(value, str) else value


def _failures(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[Failure, ...]:
    from cpr_native.emulate.failures import parse_failure

    try:
        return tuple(parse_failure(text) for text in value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)

_SHARED = (
    _option("--data", "A file in the raw Criteo format, plain or .gz; without it samples are generated.",
            type=_FILE, metavar="PATH"),
    _option("--samples", "Samples to generate, or lines of the file to use.", type=click.IntRange(min=100),
            show_default=f"{DEMO_SAMPLES} generated, or the whole file"),
    _option("--seed", "Of model, generated samples and failures.", type=click.IntRange(min=0)),
    click.option("--strategies", default=",".join(_DEFAULTS.strategies), show_default=True, callback=_split,
                 metavar="NAMES", help="Which to run, in this order, separated by commas."),
    _option("--shards", "Shards of the emulated job.", type=click.IntRange(min=1)),
    _option("--threads", "Threads to train with.", type=click.IntRange(min=1)),
    _option("--failures", "How many failures to draw.", type=click.IntRange(min=0)),
    _option("--checkpoints", "Keep the checkpoints here, a folder per strategy.", type=_FOLDER,
            metavar="DIR"),
    _option("--on-error", "What to do with a damaged line of the file: leave it out and count it, or stop.",
            type=click.Choice(["skip", "raise"])),
    json_option,
)  # fmt: skip

_STUDY = (
    click.option("--failure", "given", multiple=True, callback=_failures, metavar="HOUR:SHARDS",
                 help="A failure instead of drawn ones, for instance 20:3 or 40:1,2; may be repeated."),
    _option("--times", "How the hours of drawn failures are distributed.",
            type=click.Choice(["stratified", "uniform", "exponential", "gamma"])),
    _option("--gamma-shape", "Shape of the time between failures for --times gamma.", type=float),
    _option("--lost-fraction", "Share of the shards lost at a drawn failure.", type=float),
    _option("--hours", "Length of the emulated job.", type=float),
    _option("--mtbf", "Mean time between failures, hours.", type=float,
            show_default="hours / number of failures, 28 for --times exponential and gamma"),
    _option("--save-cost", "One full save, hours.", type=float),
    _option("--save-fixed-cost", "Part of it that does not shrink with the bytes.", type=float),
    _option("--load-cost", "Loading after a failure, hours.", type=float),
    _option("--reschedule-cost", "Replacing the failed nodes, hours.", type=float),
    _option("--target-pls", "Budget for the portion of lost samples.", type=float),
    _option("--fraction", "Rows in one priority save.", type=float),
    _option("--scale", "Rows of the tables relative to Criteo Kaggle's.", type=float,
            show_default="0.01 for generated samples, 1 for a file"),
    _option("--max-rows", "Most rows of one table.", type=int),
    _option("--batch-size", "Samples of one step.", type=click.IntRange(min=1),
            show_default="512 for generated samples, 128 for a file"),
)  # fmt: skip


def _with(options: tuple[Callable[[Any], Any], ...]) -> Callable[[_Command], _Command]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@_with(_SHARED)
@click.option(
    "--out",
    type=_FOLDER,
    default=Path(),
    metavar="DIR",
    show_default="the current one",
    help="Folder for results.json and report.html.",
)
def demo(**values: Any) -> None:
    """Train a DLRM through failures under each strategy and compare them.

    Prints one table and writes results.json and report.html.
    """
    _run(values)


@click.command()
@_with(_SHARED)
@_with(_STUDY)
@click.option("--out", type=_FOLDER, default=None, metavar="DIR",
              help="Folder for results.json and report.html; without it neither is written.")  # fmt: skip
def emulate(**values: Any) -> None:
    """Emulate a job of one's own choice: failures, costs, budget, tables."""
    _run(values)


def _run(values: dict[str, Any]) -> None:
    as_json = values.pop("as_json")
    with usage_errors():
        request = dataclasses.replace(_DEFAULTS, **values)
    execute(request, as_json=as_json)
