from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version

import click
import pytest

from cpr_native.cli import cli, main
from cpr_native.errors import CorruptionError

app = importlib.import_module("cpr_native.cli.app")
RUN = "import sys; from cpr_native.cli import main; sys.exit(main())"
PLAN = ["plan", "--shards", "8", "--mtbf", "28", "--total", "56", "--save-cost", "0.094"]


def _run(*arguments: str, code: str = RUN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100, check=False
    )


def _fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command("plan")
    def plan() -> None:
        raise error

    module = importlib.import_module("cpr_native.cli.plan")
    monkeypatch.setattr(module, "plan", plan)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cpr-native, version {version('cpr-native')}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("demo", "emulate", "plan", "report", "inspect", "verify", "compact", "export", "keep"):
        assert f"\n  {name} " in out


@pytest.mark.parametrize(
    "name", ["demo", "emulate", "plan", "report", "inspect", "verify", "compact", "export", "keep"]
)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "-h"]) == 0
    assert f"Usage: cpr-native {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "cpr-native: error: Missing command."),
        (["plna"], "cpr-native: error: No such command 'plna'."),
        (["plan", "--shards", "x"], "cpr-native plan: error: Invalid value for '--shards': "),
        (["plan", "--mtbf", "28"], "cpr-native plan: error: Missing option '--shards'"),
        (["plan", "extra"], "cpr-native plan: error: "),
        (["inspect"], "cpr-native inspect: error: Missing argument 'CKPT'"),
        (["demo", "--nodes", "3"], "cpr-native demo: error: No such option"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    arguments: Sequence[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(line)
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device", "/data/x"), 1, "/data/x: No space left on device"),
        (CorruptionError("segment s: checksum"), 1, "segment s: checksum"),
        (ValueError("train.txt:3: 39 fields"), 1, "train.txt:3: 39 fields"),
        (ValueError("two\nlines"), 1, "two lines"),
        (MemoryError(), 1, "MemoryError"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.Abort(), 130, "interrupted"),
    ],
)
def test_errors_are_one_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _fails_with(monkeypatch, error)
    assert main(["plan"]) == code
    assert capsys.readouterr().err.lstrip("\n") == f"cpr-native: error: {line}\n"


def test_error_nobody_expected_names_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fails_with(monkeypatch, KeyError("x"))
    assert main(["plan"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("cpr-native: error: internal error: KeyError: 'x' (")
    assert "test_cli_app.py:" in err
    assert err.count("\n") == 1


def test_closed_stdout_is_no_traceback() -> None:
    code = (
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "from cpr_native.cli import main; sys.exit(main())"
    )
    done = _run(*PLAN, "--json", code=code)
    assert done.returncode == 1
    assert done.stderr == ""


def test_process_reports_wrong_use_on_stderr() -> None:
    done = _run("plan", "--shards", "0", *PLAN[3:])
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "cpr-native plan: error: Job: --shards must be at least 1, got 0\n"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], PLAN, [*PLAN, "--json"], ["demo", "--help"], ["emulate", "--help"],
     ["verify", "--help"], ["inspect", "/nonexistent"], ["verify", "/nonexistent"]],
)  # fmt: skip
def test_torch_is_not_imported(arguments: list[str]) -> None:
    code = (
        "import sys; from cpr_native.cli import main; main(sys.argv[1:]); "
        "sys.exit(33 if 'torch' in sys.modules else 0)"
    )
    assert _run(*arguments, code=code).returncode == 0


def test_group_is_a_click_command() -> None:
    assert isinstance(cli, click.Group)
    assert cli.list_commands(click.Context(cli)) == [
        "cluster",
        "compact",
        "demo",
        "emulate",
        "export",
        "inspect",
        "keep",
        "plan",
        "report",
        "verify",
    ]


def test_exit_codes_are_the_documented_ones() -> None:
    assert (app.OK, app.BAD, app.USAGE) == (0, 1, 2)
