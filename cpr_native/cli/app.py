"""Entry point of `cpr-native`: commands are loaded on use, every error is one line on stderr."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

OK, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130

_COMMANDS = {
    "cluster": ("cpr_native.cli.cluster", "cluster"),
    "compact": ("cpr_native.cli.compact", "compact"),
    "demo": ("cpr_native.cli.emulate", "demo"),
    "emulate": ("cpr_native.cli.emulate", "emulate"),
    "export": ("cpr_native.cli.export", "export"),
    "inspect": ("cpr_native.cli.checkpoint", "inspect"),
    "keep": ("cpr_native.cli.keep", "keep"),
    "plan": ("cpr_native.cli.plan", "plan"),
    "report": ("cpr_native.cli.report", "report"),
    "verify": ("cpr_native.cli.checkpoint", "verify"),
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are named, so that `plan` does not load torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=_LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 something bad was found or went wrong, 2 wrong use.",
)
@click.version_option(package_name="cpr-native", prog_name="cpr-native")
def cli() -> None:
    """Fault-tolerant training of recommendation models: studies, planning and checkpoints."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 found bad, 2 wrong use, 130 interrupted.

    Args:
        argv: arguments without the program's name; None for those of the process.
    """
    try:
        result = cli.main(list(sys.argv[1:] if argv is None else argv), "cpr-native", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; without this the interpreter complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        return _fail(error.format_message(), error.exit_code, context.command_path if context else None)
    except Exception as error:
        return _fail(describe(error), BAD)
    return result if isinstance(result, int) else OK


def describe(error: Exception) -> str:
    """One line about `error`: what the package raises speaks for itself, anything else names its place."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fspath(error.filename)!s}: {error.strerror or error}"
    from cpr_native.errors import CprError

    if isinstance(error, (CprError, OSError, ValueError, MemoryError, ModuleNotFoundError)):
        return str(error) or type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"internal error: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"


def _fail(message: str, code: int, command: str | None = None) -> int:
    line = " ".join(message.split())
    try:
        print(f"{command or 'cpr-native'}: error: {line}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code
