"""Emulation of a production job on one process: virtual clock, failures, overhead, results and report.

`cpr_native.emulate.runner` trains and needs torch; `cpr_native.emulate.report` needs the `demo` extra.
What is exported here needs neither.
"""

from __future__ import annotations

from cpr_native.emulate.clock import VirtualClock
from cpr_native.emulate.failures import Failure, FailureSchedule, draw_failures, given_failures, parse_failure
from cpr_native.emulate.results import FailureRecord, Results, RunResult, write_results

__all__ = [
    "Failure",
    "FailureRecord",
    "FailureSchedule",
    "Results",
    "RunResult",
    "VirtualClock",
    "draw_failures",
    "given_failures",
    "parse_failure",
    "write_results",
]
