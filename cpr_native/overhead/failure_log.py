"""Failure logs: a CSV file of failures, the MTBF that it says, and whether the exponential law holds."""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from cpr_native.overhead._gamma import digamma, gamma_quantile

_COLUMNS = ("hours_between", "failed_at_hours", "failed_at")
_FEWEST_FOR_SHAPE = 5
_REPEATS = 4000


@dataclass(frozen=True, kw_only=True)
class FailureLog:
    """Times between failures that were seen.

    `hours_between`: ascending in time, each above 0; `quiet_hours`: observed after the last failure.
    """

    hours_between: tuple[float, ...]
    quiet_hours: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FailureFit:
    """What a log says.

    `mtbf_hours`: observed hours / failures; `mtbf_low`, `mtbf_high`: its exact 90 % interval if times are
    exponential; `gamma_shape`: maximum likelihood shape of a gamma law (1: exponential; above: more even,
    below: in bursts), None for fewer than 5 failures; `exponential_p`: the chance that exponential times
    look at least as little exponential.
    """

    failures: int
    observed_hours: float
    mtbf_hours: float
    mtbf_low: float
    mtbf_high: float
    gamma_shape: float | None
    exponential_p: float | None

    @property
    def exponential(self) -> bool:
        """Whether nothing speaks against exponential times (at 5 %)."""
        return self.exponential_p is None or self.exponential_p >= 0.05


def read_failure_log(path: str | os.PathLike[str]) -> FailureLog:
    """Read a CSV file with a header and one failure a line.

    One of these columns says when, any others are not read:

    - `hours_between`: hours since the failure before, or since observation began;
    - `failed_at_hours`: hours since observation began, ascending;
    - `failed_at`: ISO 8601 times, ascending; the first one is where observation begins.

    A column `failed` may hold 1, or 0 in the last line: until then there was no further failure. Empty lines
    are passed over. Raises ValueError that names the file and line for anything else, OSError.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _read(csv.DictReader(file), os.fspath(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{os.fspath(path)}: expected a CSV file in UTF-8: {error}") from None


def _read(reader: csv.DictReader[str], name: str) -> FailureLog:
    columns = [column for column in _COLUMNS if column in (reader.fieldnames or ())]
    if len(columns) != 1:
        raise ValueError(
            f"{name}:1: the header must have one of {', '.join(_COLUMNS)}, got "
            f"{', '.join(reader.fieldnames or ()) or 'nothing'}"
        )
    column = columns[0]
    gaps: list[float] = []
    previous: float | None = None if column == "failed_at" else 0.0
    quiet, ended = 0.0, False
    for row in reader:
        where = f"{name}:{reader.line_num}"
        if ended:
            raise ValueError(f"{where}: comes after a line with failed 0, which must be the last")
        text = (row[column] or "").strip()
        hours = _hours(text, column, where)
        failed = (row.get("failed") or "1").strip()
        if failed not in ("0", "1"):
            raise ValueError(f"{where}: failed must be 1, or 0 in the last line, got {failed!r}")
        if column == "hours_between":
            gap = hours
        elif previous is None:
            previous = hours
            continue
        else:
            gap, previous = hours - previous, hours
        if not gap > 0:
            raise ValueError(f"{where}: {column} must come after the line before it, got {text!r}")
        if failed == "1":
            gaps.append(gap)
        else:
            quiet, ended = gap, True
    if not gaps:
        least = 2 if column == "failed_at" else 1
        raise ValueError(f"{name}: holds too few failures; feasible is a log of at least {least}")
    return FailureLog(hours_between=tuple(gaps), quiet_hours=quiet)


def _hours(text: str, column: str, where: str) -> float:
    try:
        if column == "failed_at":
            return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() / 3600.0
        hours = float(text)
    except ValueError:
        wanted = "an ISO 8601 time" if column == "failed_at" else "a number of hours"
        raise ValueError(f"{where}: {column} must be {wanted}, got {text!r}") from None
    if not 0 < hours < math.inf:
        raise ValueError(f"{where}: {column} must be finite and above 0, got {text!r}")
    return hours


def fit_failures(log: FailureLog) -> FailureFit:
    """Fit the exponential law to `log`, and a gamma law to test it.

    The test is Moran's: the logarithm of the mean less the mean logarithm, whose law under the exponential
    one does not depend on the MTBF and is simulated (seeded).
    """
    gaps = np.asarray(log.hours_between)
    count = len(gaps)
    observed = float(gaps.sum() + log.quiet_hours)
    shape = p_value = None
    if count >= _FEWEST_FOR_SHAPE:
        spread = _log_spread(gaps[None])[0]
        drawn = _log_spread(np.random.Generator(np.random.PCG64(0)).exponential(size=(_REPEATS, count)))
        tail = min(np.mean(drawn >= spread), np.mean(drawn <= spread))
        shape, p_value = _shape(float(spread)), min(1.0, 2 * float(tail))
    return FailureFit(
        failures=count,
        observed_hours=observed,
        mtbf_hours=observed / count,
        mtbf_low=observed / gamma_quantile(count + 1.0, 0.95),
        mtbf_high=observed / gamma_quantile(float(count), 0.05),
        gamma_shape=shape,
        exponential_p=p_value,
    )


def _log_spread(gaps: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.asarray(np.log(gaps.mean(axis=1)) - np.log(gaps).mean(axis=1), np.float64)


def _shape(spread: float, most: float = 1e4) -> float:
    """Shape k with log k - digamma(k) = spread, which falls with k; at most `most`, for equal times."""
    low, high = 1e-3, most
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if math.log(middle) - digamma(middle) > spread else (low, middle)
    return high
