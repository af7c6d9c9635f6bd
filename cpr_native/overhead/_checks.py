"""Range checks of this package."""

from __future__ import annotations

import math


def check_number(owner: str, name: str, value: float, *, positive: bool) -> None:
    """Raise ValueError unless `value` is finite and at least 0, or with `positive` above 0."""
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        wanted = "a finite number above 0" if positive else "a finite number of at least 0"
        raise ValueError(f"{owner}: {name} must be {wanted}, got {value}")
