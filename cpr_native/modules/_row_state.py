"""A table's optimizer state: as the engine has it, and under the names of torch's optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._tensor import describe
from cpr_native.modules._plan import Engine
from cpr_native.optim import SGD, Adagrad, Adam, FusedOptimizer, RowWiseAdagrad

FloatArray = NDArray[np.float32]

_BLOCK = 2**16


def _parts(settings: FusedOptimizer) -> tuple[tuple[str, bool], ...]:
    """Name of each part in the order of the columns, and whether it is one value a row."""
    if isinstance(settings, SGD):
        return ()
    if isinstance(settings, RowWiseAdagrad):
        return (("sum", True),)
    if isinstance(settings, Adagrad):
        return (("sum", False),)
    return (("exp_avg", False), ("exp_avg_sq", not isinstance(settings, Adam)))


def split_state(settings: FusedOptimizer, state: FloatArray | None) -> dict[str, Tensor]:
    """Copies of the parts of `state`, as `Collection.state` gave it: [rows, dim] or [rows], float32."""
    parts = _parts(settings)
    if state is None:
        return {}
    columns = state.reshape(len(state), -1)
    arrays = sum(not of_row for _, of_row in parts)
    dim = (columns.shape[1] - (len(parts) - arrays)) // arrays if arrays else 0
    split, begin = {}, 0
    for name, of_row in parts:
        part = columns[:, begin] if of_row else columns[:, begin : begin + dim]
        split[name] = torch.from_numpy(part.copy())
        begin += 1 if of_row else dim
    return split


def joined_state(
    settings: FusedOptimizer, shape: Sequence[int], entry: Mapping[str, Any], where: str
) -> FloatArray | None:
    """The reverse of `split_state` for a table of `shape`; None without state, initial state for no `entry`.

    Raises ValueError for other names or shapes, TypeError for what isn't a tensor; the message begins with
    `where`.
    """
    rows, dim = shape
    parts = _parts(settings)
    if not parts and not entry:
        return None
    if not entry:
        width = sum(1 if of_row else dim for _, of_row in parts)
        initial = getattr(settings, "initial_accumulator", 0.0)
        full: FloatArray = np.full((rows, width), initial, dtype=np.float32)
        return _as_engine(full)
    names = [name for name, _ in parts]
    if sorted(entry) != sorted(names):
        raise ValueError(f"{where}: expected {names} beside step, got {sorted(entry)}")
    columns = []
    for name, of_row in parts:
        value = entry[name]
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}: {name}: expected a tensor, got {type(value).__name__}")
        expected = (rows,) if of_row else (rows, dim)
        if tuple(value.shape) != expected:
            raise ValueError(f"{where}: {name}: expected shape {expected}, got {tuple(value.shape)}")
        columns.append(value.detach().to("cpu", torch.float32).numpy().reshape(rows, -1))
    return _as_engine(np.concatenate(columns, axis=1))


def _as_engine(columns: FloatArray) -> FloatArray:
    """One value a row has no second dimension in the engine."""
    return columns.reshape(-1) if columns.shape[1] == 1 else columns


def write_state(engine: Engine, table: int, weight: Tensor, state: FloatArray | None) -> None:
    """Write the state of all rows of a table whose rows are `weight`; they become dirty, counts stay."""
    if state is None:
        return
    trackers = engine.trackers(table)
    first = engine.tables[table].row_offset
    for begin in range(0, len(state), _BLOCK):
        # Copies in memory of the host: the engine reads them while it writes the rows.
        values = state[begin : begin + _BLOCK]
        rows = weight.detach()[begin : begin + _BLOCK].to("cpu", copy=True)
        ids = np.arange(first + begin, first + begin + len(values), dtype=np.int64)
        engine.load_rows(table, describe(ids), describe(rows), describe(values), dirty=True)
    engine.set_trackers(table, describe(trackers))
    engine.mark_dirty(table)
