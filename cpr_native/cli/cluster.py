"""`cpr-native cluster`: the runs of a Ray cluster, what their shards do, and their end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from cpr_native.cli.output import console, json_option, new_table, print_json
from cpr_native.emulate.units import human_bytes

if TYPE_CHECKING:
    from cpr_native.ray import ClusterReport, RayCluster, ShardReport

_address = click.option(
    "--address",
    default="auto",
    show_default=True,
    metavar="HOST:PORT",
    help="Of the Ray cluster; auto: the one of this machine, or RAY_ADDRESS.",
)
_run = click.option("--run", metavar="NAME", help="The run; not needed where there is one only.")


@click.group()
def cluster() -> None:
    """Show or end the shards of a run on a Ray cluster (needs the extra `ray`)."""


@cluster.command()
@_address
@_run
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=5.0, show_default=True, metavar="SECONDS",
    help="How long shards may take to answer.",
)  # fmt: skip
@json_option
def status(address: str, run: str | None, timeout: float, as_json: bool) -> int:
    """Show the shards of a run: incarnation, rows, last commit and lag; and what is left of its PLS budget.

    Exit code 1 when a shard does not answer.
    """
    report = _attach(address, run).report(timeout)
    if as_json:
        print_json(_to_dict(report))
    else:
        _print(report)
    return int(any(shard.status is None for shard in report.shards))


@cluster.command()
@_address
@_run
@click.option("--no-commit", is_flag=True, help="Don't save what is not saved yet.")
def stop(address: str, run: str | None, no_commit: bool) -> None:
    """End the shards of a run, after a last save. Ray, its nodes and other runs go on."""
    found = _attach(address, run)
    found.stop(commit=not no_commit)
    click.echo(f"{found.record.settings.run}: stopped")


def _attach(address: str, run: str | None) -> RayCluster:
    from cpr_native.ray import RayCluster, connect, runs

    connect(address)
    if run is None:
        names = runs()
        if len(names) != 1:
            raise click.UsageError(f"--run: expected one of the runs {names}")
        run = names[0]
    return RayCluster.attach(run)


def _lag(shard: ShardReport, newest: int) -> int | None:
    return None if shard.status is None else newest - min(shard.status.watermarks)


def _newest(report: ClusterReport) -> int:
    return max((max(s.status.watermarks) for s in report.shards if s.status is not None), default=0)


def _to_dict(report: ClusterReport) -> dict[str, Any]:
    newest = _newest(report)
    return {
        "run": report.record.settings.run,
        "store": report.record.store,
        "rows": report.record.rows,
        "pending": report.pending,
        "progress": dict(report.progress),
        "shards": [{**dataclasses.asdict(s), "lag": _lag(s, newest)} for s in report.shards],
    }


def _print(report: ClusterReport) -> None:
    record, out, newest = report.record, console(), _newest(report)
    out.print(
        Text(f"run {record.settings.run}: {record.shards} shards, {record.rows:,} rows, {record.store}")
    )
    table = new_table("\nShards")
    for name in ("shard", "state", "node"):
        table.add_column(name)
    for name in ("pid", "life", "restarts", "step", "lag", "rows", "dirty", "commit", "of step", "memory"):
        table.add_column(name, justify="right")
    for shard in report.shards:
        table.add_row(*_row(shard, newest))
    out.print(table)
    for shard in report.shards:
        if shard.problem is not None:
            out.print(Text(f"shard {shard.shard}: {shard.problem}"))
    if report.pending is not None:
        out.print(Text(report.pending))
    out.print(Text(_budget(report.progress)))


def _row(shard: ShardReport, newest: int) -> list[str]:
    life, status = shard.life, shard.status
    row = [str(shard.shard), shard.state, "-" if life is None else life.address]
    if life is None or status is None:
        return [*row, *["-"] * 2, str(shard.restarts), *["-"] * 7]
    return [
        *row,
        str(life.pid),
        str(life.incarnation),
        str(shard.restarts),
        f"{min(status.watermarks):,}",
        str(_lag(shard, newest)),
        f"{sum(status.rows.values()):,}",
        f"{sum(status.dirty.values()):,}",
        "-" if status.last_commit is None else str(status.last_commit),
        f"{status.last_step:,}",
        human_bytes(sum(status.memory.values())),
    ]


def _budget(progress: Any) -> str:
    if not progress:
        return "\ntraining: nothing reported"
    parts = [f"step {progress['step']:,}"] if "step" in progress else []
    if "pls" in progress:
        target = f" of {progress['target_pls']:.2%} at most" if progress.get("target_pls") is not None else ""
        parts.append(f"PLS {progress['pls']:.4%}{target}")
    parts += [
        f"{name.replace('_', ' ')} {progress[name]:,}"
        for name in ("recoveries", "lost_lookups")
        if name in progress
    ]
    return "\ntraining: " + ", ".join(parts)
