"""Whether the budget of a priority save binds: rows touched between two saves against rows saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study_common.records import Records

from cpr_native.overhead import Job, partial_interval
from cpr_native.policy import prioritised_tables
from cpr_study.setups import SETUPS, Samples

LEAST = 2.0


@dataclass(frozen=True)
class _Rows:
    num_embeddings: int
    embedding_dim: int = 1


def ids_by_table(samples: Samples, tables: list[int]) -> dict[int, NDArray[np.int64]]:
    """Return the id of every training sample in each of `tables`, one id a bag."""
    count = len(samples.table_sizes)
    columns: dict[int, list[NDArray[np.int64]]] = {table: [] for table in tables}
    for batch in samples.train:
        ids = batch.ids.numpy().reshape(count, -1)
        for table in tables:
            columns[table].append(ids[table])
    return {table: np.concatenate(parts) for table, parts in columns.items()}


def touched(samples: Samples, *, every: int, fraction: float) -> dict[str, Any]:
    """Return the different rows touched in `every` samples against the rows that a save of `fraction` takes.

    Over the prioritised tables together (`ratio`), of the table with the least (`least_of_a_table`), and how
    many tables reach `LEAST` alone (`tables_binding`); means over the whole intervals of the run. Below
    `LEAST` the budget hardly binds (`void`): the most frequently used rows are then nearly all that changed.
    """
    tables = prioritised_tables([_Rows(rows) for rows in samples.table_sizes])
    ids = ids_by_table(samples, tables)
    every = min(every, samples.count)
    starts = range(0, samples.count - every + 1, every)
    seen = [np.mean([len(np.unique(ids[t][start : start + every])) for start in starts]) for t in tables]
    budgets = [max(1, int(fraction * samples.table_sizes[table])) for table in tables]
    ratio = float(sum(seen) / sum(budgets))
    alone = [float(s / b) for s, b in zip(seen, budgets, strict=True)]
    return {
        "every_samples": every, "rows_touched": float(sum(seen)), "budget_rows": sum(budgets), "ratio": ratio,
        "least_of_a_table": min(alone), "tables": len(tables),
        "tables_binding": sum(r >= LEAST for r in alone), "void": ratio < LEAST,
    }  # fmt: skip


def touched_in_cells(records: Records, samples: Mapping[str, Samples]) -> dict[str, dict[str, Any]]:
    """Return `touched` of every cell that has records, by experiment and cell; `samples`: by set-up."""
    known: dict[tuple[str, int, float], dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for experiment in ("quality", "proxy", "budget", "sensitivity"):
        for cell, cell_records in records.all(experiment).items():
            first = cell_records[0]
            setup, settings = SETUPS[first["setup"]], first["settings"]
            job = Job(**first["job"])
            fraction = float(settings.get("fraction", setup.fraction))
            hours = (
                partial_interval(job, float(settings.get("target_pls", setup.preset.target_pls)))[0]
                * fraction
            )
            every = max(1, round(hours * samples[setup.name].count / job.total_hours))
            key = (setup.name, every, float(settings.get("ssu_capacity", fraction)))
            if key not in known:
                known[key] = touched(samples[setup.name], every=every, fraction=key[2])
            found.setdefault(experiment, {})[cell] = known[key]
    return found
