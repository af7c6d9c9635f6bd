"""The named errors. Wrong arguments raise ValueError, TypeError or IndexError; files raise OSError."""

from __future__ import annotations

from cpr_native._native import (
    CorruptionError,
    CprError,
    ForkedProcessError,
    SnapshotInProgress,
    StagingFull,
)

__all__ = [
    "CorruptionError",
    "CprError",
    "FencedError",
    "ForkedProcessError",
    "LockedError",
    "NoCheckpointError",
    "SchemaMismatchError",
    "SnapshotInProgress",
    "StagingFull",
]


class LockedError(CprError):
    """Another writer, here or in another process, holds the lock of a chain."""


class FencedError(CprError):
    """A newer writer has committed to the chain: this writer must stop."""


class NoCheckpointError(CprError):
    """Nothing in the checkpoint directory can be restored; the message says what was refused and why."""


class SchemaMismatchError(CprError, ValueError):
    """The checkpoint belongs to another model, placement or run; the message names table and field."""
