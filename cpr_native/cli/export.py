"""`cpr-native export`: a point of a checkpoint as one plain file of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cpr_native.cli.location import CheckpointLocation
from cpr_native.cli.output import console
from cpr_native.emulate.units import human_bytes
from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, RestorePoint


@click.command()
@click.argument("ckpt", metavar="CKPT", type=CheckpointLocation(exists=True, file_okay=False, path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--format", "form", type=click.Choice(["safetensors", "state_dict"]), show_default=True,
              default="safetensors", help="state_dict: for torch.load(weights_only=True).")  # fmt: skip
@click.option("--mode", type=click.Choice(["exact", "running"]), default="exact", show_default=True,
              help="One step, or of every shard its newest rows.")  # fmt: skip
@click.option("--sequence", type=click.IntRange(min=1), default=None,
              help="An exact point by its number (see inspect), not the newest.")  # fmt: skip
@click.option("--state", is_flag=True, help="The rows' optimizer state too.")
def export(
    ckpt: Path | str, out: Path, form: Literal["safetensors", "state_dict"],
    mode: Literal["exact", "running"], sequence: int | None, state: bool,
) -> None:  # fmt: skip
    """Write the tables and dense parameters of a checkpoint directory or URL to the new file OUT.

    Tables are called <table>.weight, dense parameters as in the model's state_dict. Every byte is checked
    first; OUT appears whole or not at all.
    """
    from cpr_native.recovery.export import export as write

    if sequence is not None and mode == "running":
        raise click.UsageError("--sequence names an exact point: leave out --mode running")
    if out.exists():
        raise click.BadParameter(f"{out} exists; give a new name or remove it", param_hint="'OUT'")
    store = CheckpointStore(ckpt)
    point = store.latest(mode) if sequence is None else _point(store, sequence)
    for message in point.skipped:
        click.echo(f"passed over: {message}", err=True)
    columns = TextColumn("exporting"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("")
        done = write(
            point, out, form=form, state=state,
            progress=lambda rows, total: bar.update(task, completed=rows, total=total),
        )  # fmt: skip
    for name in done.left_out:
        click.echo(f"left out: {name} is no tensor", err=True)
    click.echo(f"{out}: {len(done.tensors)} tensors of step {point.step}, {human_bytes(done.bytes)}")


def _point(store: CheckpointStore, sequence: int) -> RestorePoint:
    points = store.points()
    for point in points:
        if point.sequence == sequence:
            return point
    known = ", ".join(str(point.sequence) for point in points) or "none"
    raise NoCheckpointError(f"{store}: no exact point {sequence}; there are: {known}")
