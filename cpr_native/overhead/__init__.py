"""What fault tolerance costs: the equations of the CPR paper, and planning beyond them."""

from __future__ import annotations

from cpr_native.overhead.equations import (
    KAGGLE,
    TERABYTE,
    Costs,
    Job,
    Overhead,
    Plan,
    Preset,
    Recovery,
    expected_pls,
    expected_pls_in_job,
    full_overhead,
    optimal_full_interval,
    partial_interval,
    partial_overhead,
    plan,
)
from cpr_native.overhead.estimates import CostEstimate, MtbfEstimate
from cpr_native.overhead.failure_log import FailureFit, FailureLog, fit_failures, read_failure_log
from cpr_native.overhead.loop import ClosedLoop, LoopState
from cpr_native.overhead.rows import PolicyUse, TableUse, policy_use
from cpr_native.overhead.simulate import FailureTimes, Jobs, simulate_closed, simulate_open
from cpr_native.overhead.study import closed_loop_study

__all__ = [
    "KAGGLE",
    "TERABYTE",
    "ClosedLoop",
    "CostEstimate",
    "Costs",
    "FailureFit",
    "FailureLog",
    "FailureTimes",
    "Job",
    "Jobs",
    "LoopState",
    "MtbfEstimate",
    "Overhead",
    "Plan",
    "PolicyUse",
    "Preset",
    "Recovery",
    "TableUse",
    "closed_loop_study",
    "expected_pls",
    "expected_pls_in_job",
    "fit_failures",
    "full_overhead",
    "optimal_full_interval",
    "partial_interval",
    "partial_overhead",
    "plan",
    "policy_use",
    "read_failure_log",
    "simulate_closed",
    "simulate_open",
]
