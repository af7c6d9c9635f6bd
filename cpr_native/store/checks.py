"""Checks of single values, of the caller or read from a file."""

from __future__ import annotations

import json
import math
from typing import Any

_MAX_COUNT = 2**62
_MAX_NAME = 1024


def check_count(what: str, value: object, least: int) -> None:
    """Raises TypeError or ValueError unless `value` is an int in [least, 2**62]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what}: expected an int, got {type(value).__name__}")
    if not least <= value <= _MAX_COUNT:
        raise ValueError(f"{what}: expected {least}..2**62, got {value}")


def check_text(what: str, value: object) -> None:
    """Raises TypeError or ValueError unless `value` is a str of 1..1024 printable characters."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a str, got {type(value).__name__}")
    if not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise ValueError(f"{what}: expected 1..{_MAX_NAME} printable characters, got {value!r}")


def check_float(what: str, value: object) -> None:
    """Raises TypeError or ValueError unless `value` is a finite float."""
    if not isinstance(value, float):
        raise TypeError(f"{what}: expected a float, got {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{what}: expected a finite number, got {value}")


def exact_fields(what: str, data: object, names: list[str]) -> dict[str, Any]:
    """Returns `data`; raises ValueError unless it is a dict with exactly the keys `names`."""
    if not isinstance(data, dict) or sorted(data) != sorted(names):
        got = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"{what}: expected the fields {sorted(names)}, got {got}")
    return data


def check_json(what: str, value: object) -> None:
    """Raises TypeError or ValueError unless `value` is a dict that comes back equal from JSON."""
    if not isinstance(value, dict):
        raise TypeError(f"{what}: expected a dict, got {type(value).__name__}")
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    if json.loads(text) != value:
        raise TypeError(f"{what}: expected JSON values only (str keys, lists, no tuples), got {value!r}")
