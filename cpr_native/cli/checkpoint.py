"""`cpr-native inspect` and `cpr-native verify`: what is in a checkpoint directory and is it intact."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from cpr_native.cli.location import CheckpointLocation
from cpr_native.cli.outlook import print_recovery, recovery_dict
from cpr_native.cli.output import byte_progress, console, json_option, new_table, print_json
from cpr_native.emulate.units import human_bytes
from cpr_native.errors import CprError
from cpr_native.store import CheckpointStore
from cpr_native.store.inspect import ChainSummary, DirectorySummary
from cpr_native.store.inspect import inspect as inspect_directory
from cpr_native.store.inspect import verify as verify_directory
from cpr_native.store.outlook import outlook, row_ages

_checkpoint = click.argument(
    "path",
    metavar="CKPT",
    type=CheckpointLocation(exists=True, file_okay=False, readable=True, path_type=Path),
)
_NEWEST = 8


@click.command()
@_checkpoint
@click.option("--all", "show_all", is_flag=True, help=f"List every save, not the newest {_NEWEST} only.")
@click.option(
    "--recovery",
    is_flag=True,
    help="Read the segments too: what each recovery would restore, and how old its rows are.",
)
@json_option
def inspect(path: Path | str, show_all: bool, recovery: bool, as_json: bool) -> int:
    """Show the tables, shards and saves of a checkpoint directory or URL from its manifests.

    Exit code 1 when a manifest is damaged. Segments are not read without --recovery: see verify.
    """
    summary = inspect_directory(path)
    store = CheckpointStore(path)
    looked = (outlook(store), row_ages(store)) if recovery else None
    if as_json:
        print_json(_to_dict(summary) | (recovery_dict(*looked) if looked else {}))
    else:
        _print(summary, show_all)
        if looked:
            print_recovery(*looked)
        for problem in summary.problems:
            click.echo(problem, err=True)
    return 1 if summary.problems else 0


@click.command()
@_checkpoint
@json_option
def verify(path: Path | str, as_json: bool) -> int:
    """Read every byte of a checkpoint directory or URL and check it against its manifests.

    Exit code 1 when anything is damaged, missing or foreign; each problem is one line.
    """
    with byte_progress("verifying", disable=as_json) as watch:
        try:
            problems = verify_directory(path, watch=watch)
        except CprError as error:
            problems = [str(error)]
    if as_json:
        print_json({"path": str(path), "intact": not problems, "problems": problems})
    elif not problems:
        click.echo(f"{path}: intact")
    else:
        for problem in problems:
            click.echo(problem, err=True)
    return 1 if problems else 0


def _to_dict(summary: DirectorySummary) -> dict[str, Any]:
    return {
        "path": summary.path,
        "run_id": summary.run_id,
        "schema": summary.schema.to_json(),
        "placement": summary.placement.to_json(),
        "chains": [dataclasses.asdict(chain) for chain in summary.chains],
        "problems": list(summary.problems),
    }


def _print(summary: DirectorySummary, show_all: bool) -> None:
    tables = summary.schema.tables
    rows = sum(table.rows for table in tables)
    whole, shards = summary.chains[0], summary.chains[1:]
    out = console()
    out.print(Text(f"{summary.path}: run {summary.run_id}"))
    out.print(
        Text(
            f"{len(tables)} tables, {rows:,} rows, optimizer {summary.schema.optimizer}; "
            f"{summary.placement.shards} shards, placement {summary.placement.strategy}; "
            f"{human_bytes(sum(chain.bytes for chain in summary.chains))} in segments"
        )
    )
    saves = whole.commits if show_all else whole.commits[-_NEWEST:]
    hidden = f", the newest {len(saves)}" if len(saves) < len(whole.commits) else ""
    table = new_table(f"\nSaves: {len(whole.commits)}{hidden}")
    for name in ("sequence", "kind", "step", "samples", "parent", "rows", "bytes", "incarnation", "live"):
        table.add_column(name, justify="left" if name in ("kind", "live") else "right")
    for commit in saves:
        rows, size = summary.saved(commit)
        table.add_row(
            str(commit.sequence), commit.kind, f"{commit.step:,}", f"{commit.samples:,}",
            str(commit.parent or "-"), f"{rows:,}", human_bytes(size),
            str(commit.incarnation), "yes" if commit.live else "no",
        )  # fmt: skip
    out.print(table)
    out.print(_shard_table(shards))


def _shard_table(shards: tuple[ChainSummary, ...]) -> Any:
    table = new_table("\nShards")
    table.add_column("chain")
    for name in ("commits", "base", "delta", "priority", "newest step", "rows saved", "bytes", "unfinished"):
        table.add_column(name, justify="right")
    for chain in shards:
        kinds = [commit.kind for commit in chain.commits]
        table.add_row(
            chain.chain,
            str(len(kinds)),
            *(str(kinds.count(kind)) for kind in ("base", "delta", "priority")),
            f"{chain.commits[-1].step:,}" if chain.commits else "-",
            f"{sum(sum(commit.rows.values()) for commit in chain.commits):,}",
            human_bytes(chain.bytes),
            str(len(chain.unfinished)),
        )
    return table
