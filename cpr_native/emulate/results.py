"""The outcome of an emulation as `results.json` holds it; `docs/results.md` describes the file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpr_native.emulate.rows import RowAge, RowsSaved
from cpr_native.overhead import Overhead, Recovery

VERSION = 2
"""Of `results.json`; the first had no number, no `saves` and nothing of rows."""

PARTS = ("save", "load", "lost", "reschedule")
"""The parts of the overhead, in the order of `results.json`, tables and plots."""

_NUMBERS = re.compile(r"\[\n\s+([-+.\deE,\s]+?)\s+\]")


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """What one failure did to one run.

    Args:
        hour: hours of work at which it struck.
        shards: the shards lost.
        rows_restored: rows written back from checkpoint files.
        lost_lookups: lookups of the lost rows since they were last saved; 0 after a full recovery, which
            does that work again.
        mode: how the run recovered.
        pls: what it added to the portion of lost samples.
        row_age: how old the rows were that went back, whether a commit held them or not.
    """

    hour: float
    shards: tuple[int, ...]
    rows_restored: int
    lost_lookups: int
    mode: Recovery
    pls: float
    row_age: RowAge


@dataclass(frozen=True, kw_only=True)
class SaveMark:
    """One commit on the time axis.

    Args:
        hour: hours of work at which the snapshot was taken.
        kind: `base`, `delta` or `priority`.
        bytes_written: bytes of its files.
        cost_hours: overhead charged for it.
    """

    hour: float
    kind: str
    bytes_written: int
    cost_hours: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outcome of one strategy.

    Args:
        strategy: its name, one of `cpr_native.emulate.settings.STRATEGIES`.
        seed: seed of model and failures.
        auc, logloss: of the held-out samples after training.
        overhead_percent: overhead in percent of the job's hours.
        overhead_hours: the same in hours, split.
        pls_expected: expected portion of lost samples (CPR, `0.5*T_save/(T_fail*N)`), 0 to 1.
        pls: portion of lost samples realised, 0 to 1.
        commits: saves committed to disk.
        bytes_written: bytes of all files written for them.
        failures: in order of time.
        seconds: wall-clock seconds of the run; the only value that differs from run to run.
        saves: commits in order of time.
        rows_saved: how often rows were saved, by group of tables; nothing where nothing was saved.
    """

    strategy: str
    seed: int
    auc: float
    logloss: float
    overhead_percent: float
    overhead_hours: Overhead
    pls_expected: float
    pls: float
    commits: int
    bytes_written: int
    failures: tuple[FailureRecord, ...]
    seconds: float
    saves: tuple[SaveMark, ...] = ()
    rows_saved: tuple[RowsSaved, ...] = ()

    @property
    def pls_trace(self) -> tuple[tuple[float, float], ...]:
        """`(hour, pls)` after each failure."""
        sums = itertools.accumulate(failure.pls for failure in self.failures)
        return tuple((failure.hour, pls) for failure, pls in zip(self.failures, sums, strict=True))


@dataclass(frozen=True, kw_only=True)
class Results:
    """Every run of one emulation with the data and the settings it used.

    Args:
        data: what was trained on (source, samples, tables, ...), JSON values only.
        config: the settings, JSON values only.
        runs: one per strategy in the order they ran.
    """

    data: Mapping[str, Any]
    config: Mapping[str, Any]
    runs: tuple[RunResult, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The content of `results.json`."""
        return {
            "version": VERSION,
            "data": dict(self.data),
            "config": dict(self.config),
            "runs": [dataclasses.asdict(run) for run in self.runs],
        }

    def to_json(self) -> str:
        """The text of `results.json`: two spaces of indent, lists of numbers on one line, newline at the end.

        Raises:
            ValueError: a number is not finite (JSON has no such number).
        """
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)
        return _NUMBERS.sub(lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text) + "\n"


def write_results(results: Results, path: str | os.PathLike[str]) -> None:
    """Write `results.json` so that `path` holds the old or the new text, never a part.

    Raises:
        OSError: the file cannot be written; `filename` names it.
        ValueError: a number is not finite; nothing is written.
    """
    write_text_atomically(results.to_json(), path)


def write_text_atomically(text: str, path: str | os.PathLike[str]) -> None:
    """Write UTF-8 `text` to a temporary file beside `path`, sync it and rename it into place.

    Raises:
        OSError: the file cannot be written; `filename` names it.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
