"""A thread that looks at a trainer's shards while the trainer is busy elsewhere."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

SECONDS = 0.25  # between two looks


class Watched(Protocol):
    """What is looked at."""

    def look(self) -> None:
        """Look once, without waiting for whoever is calling; raises nothing."""
        ...


def watch(watched: Watched) -> threading.Event:
    """Call `watched.look()` again and again in a thread; ends with `watched`, the process, or the event."""
    stop = threading.Event()
    seen = weakref.ref(watched)

    def run() -> None:
        while not stop.wait(SECONDS):
            found = seen()
            if found is None:
                return
            found.look()
            del found

    threading.Thread(target=run, name="cpr-clients", daemon=True).start()
    weakref.finalize(watched, stop.set)
    return stop
