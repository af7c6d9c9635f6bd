"""What the commands print: JSON for programs, tables for people."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout for programs.")


def print_json(value: Any) -> None:
    """Print `value` as JSON on stdout.

    Raises:
        ValueError: a number is not finite.
    """
    click.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


def console(*, stderr: bool = False) -> Console:
    """A console that is as wide as the terminal, and 100 columns wide where there is none."""
    out = Console(stderr=stderr, highlight=False)
    return out if out.is_terminal else Console(stderr=stderr, highlight=False, width=100)


@contextmanager
def byte_progress(what: str, *, disable: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of bytes on stderr, if that is a terminal; gives what to call with those done and in all."""
    out = console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=disable or not out.is_terminal,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def new_table(title: str | None = None) -> Table:
    """An empty table in the style of all commands."""
    return Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))


@contextmanager
def usage_errors(**options: str) -> Iterator[None]:
    """Turn the ValueError of a range check of settings into wrong use (exit code 2).

    Args:
        options: for the name of a setting, the option that sets it; messages then name the option.

    Raises:
        click.UsageError: the body raised ValueError.
    """
    try:
        yield
    except ValueError as error:
        text = re.sub(
            r"\w+(?= (?:must|of|above)\b)", lambda match: options.get(match[0], match[0]), str(error)
        )
        raise click.UsageError(text, click.get_current_context(silent=True)) from error
