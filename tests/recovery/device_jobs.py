"""A model with tables on a device, its batches and its manager, for the tests of recovery on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from recovery.jobs import BATCH, ROWS, Arrays, batches, configs, loss_of
from recovery.towers import dense_of, engine_modules
from torch import Tensor, nn

from cpr_native.config import DataType, Trackers
from cpr_native.device import Place
from cpr_native.modules import EmbeddingBag, EmbeddingBagCollection
from cpr_native.optim import FusedOptimizer, RowWiseAdagrad
from cpr_native.recovery import RecoveryManager

TRACKERS = Trackers(drift=True)
STAGING = 1 << 17


class DeviceNet(nn.Module):
    """The tables of `recovery.jobs.Net` on a device (None: the CPU), dropout and a small MLP there too.

    `beside`: a further table, on the CPU, that the first feature's ids look up too.
    """

    def __init__(
        self,
        place: Place | None,
        optimizer: FusedOptimizer | None = None,
        *,
        data_type: DataType = DataType.FP32,
        beside: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        optimizer = optimizer or RowWiseAdagrad(lr=0.05)
        self.tables = EmbeddingBagCollection(
            configs(data_type),
            optimizer=optimizer,
            seed=11,
            trackers=TRACKERS,
            max_staging_bytes=STAGING,
            device=place,
            **options,
        )
        self.beside = None
        if beside:
            self.beside = EmbeddingBag(
                ROWS[0], 8, mode="sum", optimizer=optimizer, trackers=TRACKERS,
                include_last_offset=True,
            )  # fmt: skip
        self.place = place
        self.mlp = nn.Sequential(nn.Linear(24, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.mlp.to(self.torch_device)

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.place is None else self.place.torch_device

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        pooled = self.tables(ids.to(self.torch_device), offsets.to(self.torch_device))
        if self.beside is not None:
            more = self.beside(ids[: int(offsets[BATCH])], offsets[: BATCH + 1])
            pooled = torch.cat([pooled[:, :8] + more.to(self.torch_device), pooled[:, 8:]], 1)
        out: Tensor = self.mlp(pooled).squeeze(1).cpu()
        return out


def train(model: DeviceNet, steps: Sequence[Any], manager: RecoveryManager | None = None) -> None:
    """The tables' steps alone, each counted by `manager`."""
    for batch in steps:
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        if manager is not None:
            manager.step(BATCH)


def rows_of(model: nn.Module) -> Arrays:
    """Weight and state of all tables, as copies in memory of the host."""
    found: Arrays = []
    for module in engine_modules(model):
        module.synchronize()
        for table in range(len(module.engine.tables)):
            weight, state = torch.as_tensor(module.engine.weight(table)), module.engine.state(table)
            bits = weight.detach().cpu().view({2: torch.int16, 4: torch.int32}[weight.element_size()])
            found += [bits.numpy().copy(), *([] if state is None else [state])]
    return found


def tracked(model: nn.Module) -> Arrays:
    """Trackers of all tables, as copies."""
    found: Arrays = []
    for module in engine_modules(model):
        for table in range(len(module.engine.tables)):
            found += [module.engine.trackers(table), module.engine.drift(table)]
    return found


def everything(model: DeviceNet, dense: torch.optim.Optimizer) -> Arrays:
    """Every number that training changes, as copies."""
    arrays = rows_of(model) + [value.cpu().numpy().copy() for value in model.mlp.state_dict().values()]
    for state in dense.state_dict()["state"].values():
        arrays += [torch.as_tensor(value).cpu().numpy().copy() for value in state.values()]
    return arrays


def whole(model: DeviceNet) -> Arrays:
    """Train `model` without a manager; return everything at the end."""
    dense = dense_of(model)
    torch.manual_seed(7)
    for batch in batches():
        dense.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        dense.step()
    return everything(model, dense)


def lookups_of(model: nn.Module, within: Sequence[slice]) -> int:
    """Sum of the counters of rows `within[t]` of each table t of the collection."""
    engine = engine_modules(model)[0].engine
    return sum(int(engine.counts(table)[rows].sum(dtype=np.int64)) for table, rows in enumerate(within))
