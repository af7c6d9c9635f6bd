"""A shard that is told to leave its node: by SIGTERM, or because Ray drains the node."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cpr_native.cluster.messages import Committed
from cpr_native.cluster.server import ShardServer
from cpr_native.errors import CprError
from cpr_native.ray import internals
from cpr_native.ray.log import log

SIGTERM, DRAIN = "SIGTERM", "drain"
_POLL = 0.5  # seconds between two looks at whether the node is drained


class LeaveNotice:
    """Calls `leave` once, in a thread of its own, with the reason: SIGTERM, or DRAIN of the node `node`.

    SIGTERM is seen only if this is made in the main thread; it then ends the process no more by itself.
    """

    def __init__(self, node: str, leave: Callable[[str], None]) -> None:
        self._node = node
        self._leave = leave
        self._once = threading.Lock()
        self._told, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        if threading.current_thread() is threading.main_thread():
            # The main thread of a worker is in C++: a handler in Python would not run, this byte is written.
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        else:
            log("no_sigterm", pid=os.getpid(), reason="the actor was not made in the main thread")
        threading.Thread(target=self._watch_signals, name="cpr-sigterm", daemon=True).start()
        threading.Thread(target=self._watch_node, name="cpr-drain", daemon=True).start()

    def _watch_signals(self) -> None:
        while True:
            if signal.SIGTERM in os.read(self._told, 64):
                self._begin(SIGTERM)

    def _watch_node(self) -> None:
        while True:
            time.sleep(_POLL)
            try:
                if internals.draining(self._node):
                    self._begin(DRAIN)
                    return
            except Exception as error:  # the control store is away: it comes back, or Ray ends this process
                log("drain_unknown", pid=os.getpid(), error=f"{type(error).__name__}: {error}")
                time.sleep(5 * _POLL)

    def _begin(self, reason: str) -> None:
        if self._once.acquire(blocking=False):  # never released
            self._leave(reason)


def leave(server: ShardServer, grace: float, about: Mapping[str, Any]) -> Committed | None:
    """Commit all rows that are not saved, within `grace` seconds, and free the chain.

    No update is applied any more: what comes is kept by its client for the next life. Returns the commit,
    None when it failed: that is logged, the next life then has what was committed before. Nothing is raised.
    """
    log("shard_leaves", **about, grace=grace)
    committed = None
    try:
        committed = server.drain(grace)
        server.close()
    except (CprError, OSError, TimeoutError, ValueError) as error:
        log("shard_left_unsaved", **about, error=f"{type(error).__name__}: {error}")
    if committed is not None:
        log("shard_left", **about, step=committed.step, rows=sum(committed.rows.values()),
            seconds=round(committed.seconds, 3))  # fmt: skip
    return committed
