"""Structured logs: one JSON object a line, by the logger `cpr_native.ray`."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_LOGGER = logging.getLogger("cpr_native.ray")


def log(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line: `event`, the time in seconds since 1970 and `fields` (JSON values, others as text)."""
    if _LOGGER.isEnabledFor(level):
        line = {"event": event, "time": round(time.time(), 3), **fields}
        _LOGGER.log(level, "%s", json.dumps(line, default=str))


def to_stderr() -> None:
    """Make this process write the lines to stderr, which Ray keeps in the log of the worker; once."""
    if not _LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)
        _LOGGER.propagate = False
