"""Waiting for one answer without losing sight of everything else."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from cpr_native.cluster.handle import Pending

T = TypeVar("T")

SLICE = 0.25  # seconds


def waited(pending: Pending[T], timeout: float, meanwhile: Callable[[], None]) -> T:
    """Return the answer; calls `meanwhile` every quarter of a second until it is there.

    Raises TimeoutError after `timeout` seconds, what the answer raises, and what `meanwhile` raises.
    """
    limit = monotonic() + timeout
    while True:
        started = monotonic()
        piece = min(SLICE, max(0.0, limit - started))
        try:
            return pending.result(piece)
        except TimeoutError:
            now = monotonic()
            if now >= limit or now - started < piece / 2:  # the shard itself has said so
                raise
        meanwhile()
