"""One run without failures, every iterate kept: what all failures of a workload begin from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scar.workload import Workload

from scar_study.blocks import BlockTable, tables_of
from scar_study.crossing import STAY, WINDOW, Floats, crossing, smoothed

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """The iterates of `workload` without failures.

    `weights`: [K + 2, elements] of each parameter, after 0 to K + 1 iterations; `states`: the same of its
    optimizer's state tensors, by "parameter/name"; `objective`: at least after 0 to K iterations; `target`:
    what a run has to come down to, and `reached`: when this one does.
    """

    workload: Workload
    tables: tuple[BlockTable, ...]
    weights: Arrays
    states: Arrays
    objective: Floats
    target: float
    reached: float
    cache: dict[object, NDArray[np.int32]] = field(default_factory=dict)

    @property
    def iterations(self) -> int:
        """K."""
        return self.workload.iterations


def grow(workload: Workload) -> Trunk:
    """Run `workload` without failures, as a stack of one."""
    last = workload.iterations
    more = STAY + WINDOW if workload.stochastic else 1
    model = workload.model(1)
    optimizer = workload.optimizer(model)
    weights: dict[str, list[NDArray[np.float32]]] = {name: [] for name, _ in model.named_parameters()}
    states: dict[str, list[NDArray[np.float32]]] = {}
    objective = []
    for number in range(last + more + 1):
        with torch.no_grad():
            objective.append(float(workload.objective(model)[0]))
        if number <= last + 1:
            for name, parameter in model.named_parameters():
                weights[name].append(parameter.detach().numpy().reshape(-1).copy())
                for column, tensor in state_of(optimizer, parameter).items():
                    states.setdefault(f"{name}/{column}", [])
                    states[f"{name}/{column}"].append(tensor.numpy().reshape(-1).copy())
        workload.step(model, optimizer, number)
    values = np.array(objective)
    seen = smoothed(values) if workload.stochastic else values
    target = float(seen[last])
    reached = crossing(values, target, 0, stochastic=workload.stochastic)
    if reached is None:
        raise ValueError(f"{workload.name} on {workload.data}: the run doesn't stay at its {last}th value")
    shapes = {name: parameter.shape[1:] for name, parameter in model.named_parameters()}
    return Trunk(
        workload=workload, tables=tables_of(shapes, workload.blocks),
        weights={name: np.stack(arrays) for name, arrays in weights.items()},
        states={name: _from_first_step(arrays, last + 1) for name, arrays in states.items()},
        objective=values, target=target, reached=reached,
    )  # fmt: skip


def state_of(
    optimizer: torch.optim.Optimizer | None, parameter: torch.nn.Parameter
) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors of the parameter's shape."""
    if optimizer is None:
        return {}
    entries = optimizer.state.get(parameter, {})
    return {
        name: entry for name, entry in entries.items()
        if isinstance(entry, torch.Tensor) and entry.shape == parameter.shape
    }  # fmt: skip


def _from_first_step(arrays: list[NDArray[np.float32]], last: int) -> NDArray[np.float32]:
    """Return [iterates, elements]: torch makes the state, zero, in the first step."""
    missing = last + 1 - len(arrays)
    return np.stack([np.zeros_like(arrays[0])] * missing + arrays)
