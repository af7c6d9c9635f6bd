"""Processes that are killed, or run to their end."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

_LIMIT_S = 120.0


def processes() -> ForkServerContext:
    """Starts processes from a clean one that has imported everything: in no time, and without threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["campaigns.killed"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # it does not take over sys.path
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def exit_code(process: BaseProcess, wait: Callable[[], object] | None) -> int | None:
    """Starts a process and returns how it ended; None for one that hung.

    wait: returns when the process is to be killed; None: it ends by itself.
    """
    process.start()
    if wait is not None:
        wait()
        process.kill()
    process.join(_LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    return process.exitcode
