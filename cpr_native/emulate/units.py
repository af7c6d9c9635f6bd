"""Numbers for people."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """A size in bytes in three or four characters and a decimal unit, for instance `12.3 MB`."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000.0, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
