"""Runs all campaigns and gathers their counts: `python -m campaigns.everything [--small]`.

The record of a campaign that has ended stays in the folder of records, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from campaigns.command import BAD

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "build" / "reliability"
RESULTS = ROOT / "docs" / "results" / "reliability.json"


@dataclass(frozen=True)
class Campaign:
    """A module with the options of its two sizes."""

    module: str
    full: Mapping[str, object] = field(default_factory=dict)
    small: Mapping[str, object] = field(default_factory=dict)

    def command(self, *, small: bool) -> list[str]:
        """What is run, in the folder `reliability`."""
        options = self.small if small else self.full
        told = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return ["-m", f"campaigns.{self.module}", *told]


# The longest first: they mostly wait.
CAMPAIGNS = {
    "soak": Campaign("soak", {"seconds": 1200}, {"seconds": 60, "lives": 3}),
    "fuzz": Campaign("fuzz", {"seconds": 600}, {"seconds": 20}),
    "kills": Campaign("kills", {"times": 200}, {"times": 10, "steps": 30}),
    "reattach": Campaign("reattach", {"times": 50}, {"times": 5, "sizes": "100000"}),
    "io_points": Campaign("io_faults", {}, {"seeds": 1, "step": 19}),
    "bit_flips": Campaign("bit_flips", {}, {"whole-every": 64}),
    "truncations": Campaign("truncations", {}, {"whole-every": 16}),
    "random_damage": Campaign("random_damage", {}, {"times": 20}),
}
AT_ONCE = 2


def version() -> str:
    """The commit that the campaigns ran on; "unknown" outside a clone."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def finished(path: Path, command: Sequence[str]) -> dict[str, Any] | None:
    """The record of a campaign that was run with the same command; None if there is none."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return record if record.get("command") == " ".join(command) else None


def conduct(name: str, folder: Path, *, small: bool) -> dict[str, Any]:
    """The record of a campaign, which is run unless it was; raises ClickException when it fails."""
    command = CAMPAIGNS[name].command(small=small)
    record = finished(folder / f"{name}.json", command)
    if record is None:
        click.echo(f"{name}: started", err=True)
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT / "reliability",
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        record = json.loads(done.stdout) | {
            "command": " ".join(command),
            "version": version(),
            "took_s": round(time.monotonic() - started),
        }
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    click.echo(f"{name}: {summary(record)}", err=True)
    return record


def summary(record: Mapping[str, Any]) -> str:
    """The counts of a record on a line."""
    return ", ".join(f"{name} {value}" for name, value in record.items() if isinstance(value, int))


def failures(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The counts of what must not happen that are not 0."""
    return [
        f"{name}: {count} {record[count]}"
        for name, record in results.items()
        for count in BAD
        if record.get(count)
    ]


@click.command(help=__doc__)
@click.option("--small", is_flag=True, help="For CI: minutes, into build/.")
@click.option("--again", is_flag=True, help="Forget the records of campaigns that have ended.")
def main(small: bool, again: bool) -> None:
    folder = RECORDS / ("small" if small else "full")
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json") if again else ():
        path.unlink()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {name: pool.submit(conduct, name, folder, small=small) for name in CAMPAIGNS}
        results = {name: run.result() for name, run in runs.items()}
    target = folder / "all" / RESULTS.name if small else RESULTS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    click.echo(target.relative_to(ROOT))
    if found := failures(results):
        raise click.ClickException("; ".join(found))


if __name__ == "__main__":
    main()
