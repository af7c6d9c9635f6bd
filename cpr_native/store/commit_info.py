"""What a save that was committed was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CommitInfo:
    """A durable save.

    `sequence` is that of the global chain, `rows` counts those of each table, `bytes_written` is the size of
    all segments, dense state included. `retention_error` says why older commits could not be removed, if so,
    and `compaction_error` why the last compaction in the background came to nothing.
    """

    sequence: int
    kind: str
    step: int
    samples: int
    bytes_written: int
    rows: dict[str, int]
    retention_error: str | None = None
    compaction_error: str | None = None
