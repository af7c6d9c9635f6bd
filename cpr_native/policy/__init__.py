"""Save policies: which rows a save takes, how often one is due, and how a failure is recovered.

A policy is a frozen description without state; the recovery manager asks it. A new one needs the members of
`Policy`.
"""

from __future__ import annotations

from cpr_native.policy._complete import Delta, Full, Partial
from cpr_native.policy._contract import (
    Policy,
    Ranking,
    SaveKind,
    Table,
    clears_dirty,
    exact_selections,
    prioritised_tables,
)
from cpr_native.policy._priority import Drift, Mfu, Random, RoundRobin, Scar, Ssu
from cpr_native.policy._rows import drawn_rows, fitting_blocks, most_changed_rows, next_blocks, next_rows

__all__ = [
    "Delta",
    "Drift",
    "Full",
    "Mfu",
    "Partial",
    "Policy",
    "Random",
    "Ranking",
    "RoundRobin",
    "SaveKind",
    "Scar",
    "Ssu",
    "Table",
    "clears_dirty",
    "drawn_rows",
    "exact_selections",
    "fitting_blocks",
    "most_changed_rows",
    "next_blocks",
    "next_rows",
    "prioritised_tables",
]
