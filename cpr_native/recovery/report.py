"""What the recovery manager reports: one record per save and one per recovery; and where a job stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpr_native.overhead import Recovery
from cpr_native.policy import SaveKind

SaveReason = Literal["start", "due", "requested", "close"]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A step boundary: steps and samples trained so far, and what a commit notes about it (JSON values).

    `commit`: the sequence number of the one that was restored there, if one was.
    """

    step: int
    samples: int
    info: Mapping[str, Any]
    commit: int | None = None


@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """One committed save.

    `sequence`: number of its global manifest; `kind`, `reason`; `step`, `samples`: its cut; `rows`: rows
    written; `bytes_written`: bytes of all its files; `stall_seconds`: training time it took; `seconds`:
    from begin to commit; `retention_error`: why older commits could not be removed, if so;
    `compaction_error`: why the last compaction before it came to nothing, if so.
    """

    sequence: int
    kind: SaveKind
    reason: SaveReason
    step: int
    samples: int
    rows: int
    bytes_written: int
    stall_seconds: float
    seconds: float
    retention_error: str | None = None
    compaction_error: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecoveryReport:
    """One recovery from a failure, or one restart in a new process.

    `mode`: "reattached" (tables in shared memory were as the process before had left them), "partial" or
    "full"; `restart`: True from `resume()`; `shards`: those that failed (all at a
    restart); `step`, `samples`: position of training after it; `lost_samples`: samples to train again (full
    only), the same in hours of the job as `hours_lost`; `rows_restored`: rows read from commits;
    `rows_reset`: rows back at their initial values because no commit has them; `lost_lookups`: lookups
    whose updates are gone (under a partial policy); `pls`: what this failure added to the portion of
    lost lookups; `seconds`: time taken; `skipped`: what damaged files were passed over;
    `rows_quantised`: rows read, as often as they were, from commits that have weights within a bound only;
    `doubtful_rows`: of tables in shared memory, by table: global rows, ascending, that the step in flight may
    have written (None: any row), whose batch is trained again; `refused`: why shared memory was not used, if
    some was there.
    """

    mode: Recovery | Literal["reattached"]
    shards: tuple[int, ...]
    step: int
    samples: int
    rows_restored: int
    rows_reset: int
    seconds: float
    skipped: tuple[str, ...]
    restart: bool = False
    lost_samples: int = 0
    hours_lost: float = 0.0
    lost_lookups: int = 0
    pls: float = 0.0
    rows_quantised: int = 0
    doubtful_rows: Mapping[str, NDArray[np.int64] | None] = field(default_factory=dict)
    refused: str | None = None

    @property
    def costs_as(self) -> Recovery:
        """The kind of recovery whose costs it has; of memory attached to, those of a full one."""
        return "partial" if self.mode == "partial" else "full"
