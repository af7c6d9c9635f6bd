"""Where a checkpoint is: a directory that exists, or a URL."""

from __future__ import annotations

from typing import Any

import click

from cpr_native.store.remote import is_url


class CheckpointLocation(click.Path):
    """The type of an argument that names a checkpoint; the value is a `Path`, or the URL as a str."""

    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the `Path` of a directory that exists, or a URL as it is."""
        return value if is_url(value) else super().convert(value, param, ctx)
