"""`cpr-native keep`: holds memory for tables beyond the life of a training process."""

from __future__ import annotations

import click

from cpr_native.shared import keeper


@click.command()
@click.argument("name")
@click.option("--stop", is_flag=True, help="End the process that holds NAME and free its memory.")
def keep(name: str, stop: bool) -> None:
    """Hold memory NAME until it is stopped.

    SharedMemory.keeper(NAME) of this user's processes puts tables there. It starts such a process by itself;
    run this where the process must belong to something else, such as a service.
    """
    try:
        if stop:
            done, refusal = keeper.stop(name), "no process holds it"
        else:
            done, refusal = keeper.keep(name), "a process holds it already"
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not done:
        raise click.ClickException(f"{name}: {refusal}")
