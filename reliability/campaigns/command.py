"""The command line of a campaign: an option for each keyword of its `run`, and its counts as JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

# Counts of what must not happen.
BAD = ("lost", "unequal", "undetected", "crashes")


def main(run: Callable[..., dict[str, Any]]) -> None:
    """Runs a campaign with the options given; prints what it returns, and writes it to --json.

    The exit status is 1 when it has found something.
    """

    def command(json_file: Path | None, **options: Any) -> None:
        result = run(**options)
        text = json.dumps(result, indent=1) + "\n"
        if json_file is not None:
            json_file.write_text(text, encoding="utf-8")
        click.echo(text, nl=False)
        if any(result.get(name) for name in BAD):
            raise SystemExit(1)

    options = [
        click.Option([f"--{name.replace('_', '-')}"], type=type(parameter.default), default=parameter.default)
        for name, parameter in inspect.signature(run).parameters.items()
        if isinstance(parameter.default, int | float | str)
    ]
    path = click.Option(["--json", "json_file"], type=click.Path(dir_okay=False, path_type=Path))
    # A context that is not the default one shows what the options are.
    settings = {"show_default": True}
    click.Command(
        run.__module__, callback=command, params=[*options, path], help=run.__doc__, context_settings=settings
    )()
