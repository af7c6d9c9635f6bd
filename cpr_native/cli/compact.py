"""`cpr-native compact`: folds the chains of a checkpoint directory that no writer has open."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
from rich.progress import Progress

from cpr_native.cli.location import CheckpointLocation
from cpr_native.cli.output import console, json_option, new_table, print_json
from cpr_native.emulate.units import human_bytes
from cpr_native.store import CheckpointStore
from cpr_native.store.compact import Folded
from cpr_native.store.inspect import inspect


@click.command()
@click.argument(
    "path",
    metavar="CKPT",
    type=CheckpointLocation(exists=True, file_okay=False, readable=True, path_type=Path),
)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    help="Then remove what the newest KEEP exact points don't need; without it nothing is removed.",
)
@json_option
def compact(path: Path | str, keep: int | None, as_json: bool) -> int:
    """Fold base and deltas of every shard into a base, and its newest priority saves into one.

    Restores then read less. The directory is locked meanwhile; refused while a training job has it open.
    Exit code 1 when something is damaged or can't be removed.
    """
    total = sum(chain.bytes for chain in inspect(path).chains[1:])
    with Progress(console=console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("reading", total=total)
        folded, error = CheckpointStore(path).compact(
            keep=keep, watch=lambda size: progress.advance(task, size)
        )
    if as_json:
        print_json(
            {
                "path": str(path),
                "folded": [dataclasses.asdict(each) for each in folded],
                "retention_error": error,
            }
        )
    elif not folded:
        click.echo(f"{path}: nothing to fold")
    else:
        console().print(_table(folded))
    if error is not None:
        click.echo(error, err=True)
    return 0 if error is None else 1


def _table(folded: list[Folded]) -> object:
    table = new_table("Folded")
    table.add_column("chain")
    table.add_column("kind")
    for name in ("commits", "replaces", "sequence", "rows", "bytes before", "bytes after"):
        table.add_column(name, justify="right")
    for each in folded:
        table.add_row(
            each.chain,
            each.kind,
            str(each.commits),
            str(each.replaced),
            str(each.sequence),
            f"{each.rows:,}",
            human_bytes(each.bytes_before),
            human_bytes(each.bytes_after),
        )
    return table
