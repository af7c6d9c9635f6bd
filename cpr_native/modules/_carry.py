"""What a table's rows have beside their weights, carried from one engine to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._tensor import describe
from cpr_native.modules._plan import Engine
from cpr_native.modules._row_state import write_state


@dataclass(frozen=True)
class Carried:
    """Optimizer state, tracker words and drift of all rows of a table; copies, None where there are none."""

    state: NDArray[Any] | None
    trackers: NDArray[np.uint32]
    drift: NDArray[np.float32] | None


def take(engine: Engine, table: int, *, drift: bool) -> Carried:
    """Copy what the rows of a table have; `drift`: the table has that tracker."""
    state = engine.state(table)
    return Carried(
        state=None if state is None else state.copy(),
        trackers=engine.trackers(table),
        drift=engine.drift(table) if drift else None,
    )


def put(engine: Engine, table: int, weight: Tensor, carried: Carried) -> None:
    """Give it to the rows of a table of `engine`, which are `weight`."""
    write_state(engine, table, weight, carried.state)
    engine.set_trackers(table, describe(carried.trackers))
    if carried.drift is not None:
        engine.set_drift(table, describe(carried.drift))
