"""The tables of a job that is planned: their sizes and the skew of their lookups."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpr_native.overhead import PolicyUse, TableUse, policy_use
from cpr_native.overhead.rows import CHOICES, fit_exponent
from cpr_native.policy import prioritised_tables

_LEAST_SAMPLES = 100


@dataclass(frozen=True)
class _Size:
    """What a policy reads of a table; rows of one length."""

    num_embeddings: int
    embedding_dim: int = 1


def parse_tables(text: str) -> list[tuple[int, int]]:
    """Return rows and dim of each table of `ROWSxDIM,...`, or of the CSV file with columns rows and dim.

    Raises ValueError that says which table or line is wrong, OSError.
    """
    if text.endswith(".csv"):
        return _read_tables(text)
    return [_size(part.lower().split("x"), f"table {number} of {text!r}") for number, part in
            enumerate(text.split(","), 1)]  # fmt: skip


def _read_tables(path: str) -> list[tuple[int, int]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if not {"rows", "dim"} <= set(reader.fieldnames or ()):
            got = ", ".join(reader.fieldnames or ()) or "nothing"
            raise ValueError(f"{path}:1: the header must have rows and dim, got {got}")
        tables = [_size([row["rows"], row["dim"]], f"{path}:{reader.line_num}") for row in reader]
    if not tables:
        raise ValueError(f"{path}: holds no table")
    return tables


def _size(parts: Sequence[str | None], where: str) -> tuple[int, int]:
    try:
        rows, dim = (int(part or "") for part in parts)
        if rows < 1 or dim < 1:
            raise ValueError
    except ValueError:
        got = "x".join(part or "" for part in parts)
        raise ValueError(f"{where}: must be ROWSxDIM, both whole and at least 1, got {got!r}") from None
    return rows, dim


def with_skew(sizes: Sequence[tuple[int, int]], exponents: Sequence[float]) -> list[TableUse]:
    """Return the tables with the Zipf exponent of each, or one for all; ValueError for another number."""
    if len(exponents) not in (1, len(sizes)):
        raise ValueError(
            f"skew must be one exponent or one of each of {len(sizes)} tables, got {len(exponents)}"
        )
    each = list(exponents) * (len(sizes) if len(exponents) == 1 else 1)
    return [TableUse(rows=rows, dim=dim, exponent=exponent)
            for (rows, dim), exponent in zip(sizes, each, strict=True)]  # fmt: skip


def exponents_of_sample(path: Path, sizes: Sequence[tuple[int, int]]) -> list[float]:
    """Return the exponent of each table at which as many rows are touched as the sample's lookups touch.

    `path`: a .npy file of whole numbers [samples, tables], the rows that each sample looks up, or a file in
    the raw Criteo format (26 tables; plain or .gz), hashed to the tables' sizes. Raises ValueError, OSError.
    """
    counted = _count_npy(path, sizes) if path.suffix == ".npy" else _count_criteo(path, sizes)
    return [fit_exponent(rows, samples, touched) for (rows, _), (samples, touched) in
            zip(sizes, counted, strict=True)]  # fmt: skip


def _count_npy(path: Path, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    ids = np.load(path, allow_pickle=False)
    if ids.ndim != 2 or ids.shape[1] != len(sizes) or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"{path}: must be whole numbers of shape [samples, {len(sizes)}], "
            f"got {ids.dtype} {list(ids.shape)}"
        )
    if len(ids) < _LEAST_SAMPLES:
        raise ValueError(f"{path}: has {len(ids)} samples; feasible are at least {_LEAST_SAMPLES}")
    for table, (rows, _) in enumerate(sizes):
        low, high = int(ids[:, table].min()), int(ids[:, table].max())
        if low < 0 or high >= rows:
            raise ValueError(f"{path}: ids of table {table} must be 0 to {rows - 1}, got {low} to {high}")
    return [(len(ids), len(np.unique(ids[:, table]))) for table in range(len(sizes))]


def _count_criteo(path: Path, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    from cpr_native.data import CriteoReader

    reader = CriteoReader(path, batch_size=4096, table_sizes=[rows for rows, _ in sizes], on_error="skip")
    seen = [np.zeros(rows, np.bool_) for rows, _ in sizes]
    samples = 0
    for batch in reader:
        samples += len(batch)
        ids = batch.ids.numpy().reshape(len(sizes), -1)
        for table, rows in enumerate(ids):
            seen[table][rows] = True
    if samples < _LEAST_SAMPLES:
        raise ValueError(f"{path}: has {samples} samples; feasible are at least {_LEAST_SAMPLES}")
    return [(samples, int(rows.sum())) for rows in seen]


def use_of_policies(
    tables: Sequence[TableUse], *, fraction: float, cover_hours: float, total_hours: float, samples: float
) -> dict[str, PolicyUse]:
    """Return what each policy whose choice depends on lookups alone saves and leaves unsaved."""
    large = prioritised_tables([_Size(table.rows) for table in tables])
    return {
        choice: policy_use(
            tables, large, choice, fraction=fraction, cover_hours=cover_hours, total_hours=total_hours,
            samples_per_hour=samples / total_hours,
        )
        for choice in CHOICES
    }  # fmt: skip
