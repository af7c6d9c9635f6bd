"""Native tables as saves and restores see them: those of a `Collection`, or tables in memory of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Collection, DeviceCollection, Selection, Snapshot, TableSpec

if TYPE_CHECKING:
    from cpr_native._native import TensorRef


class DeviceTables(Protocol):
    """Tables in memory of a device; the methods are those of `Collection`."""

    @property
    def tables(self) -> list[TableSpec]:
        """The tables."""
        ...

    def on_stream(self) -> tuple[DeviceCollection, int]:
        """Return the native collection and the stream that gets its next work."""
        ...

    def load_rows(
        self,
        table: int,
        rows: TensorRef,
        weight: TensorRef,
        state: TensorRef | None,
        *,
        dirty: bool = False,
        threads: int = 1,
    ) -> None:
        """Write rows in place."""
        ...

    def dirty(self, table: int) -> NDArray[np.bool_]:
        """Return a copy of each row's dirty bit."""
        ...

    def num_dirty(self, table: int) -> int:
        """Return the number of dirty rows."""
        ...

    def mark_dirty(self, table: int, rows: TensorRef | None = None) -> None:
        """Announce that rows were written."""
        ...

    def reset_rows(self, table: int, begin: int, end: int) -> None:
        """Put rows back to their initial weight and state."""
        ...

    def discard_rows(self, table: int, begin: int, end: int) -> None:
        """Destroy rows."""
        ...

    def clear_trackers(self, table: int, begin: int, end: int, *, dirty: bool) -> None:
        """Clear the trackers of rows."""
        ...

    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[int | tuple[int, int]] = (),
        blocking: bool = False,
        walk: bool = True,
    ) -> Snapshot:
        """Begin a snapshot of the selected rows."""
        ...


NativeTables = Collection | DeviceTables
