"""One table of dim 32 with its recovery manager, for the benchmarks of snapshots, saves and restores."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import torch
from harness import Shape
from sides import Ours
from torch import Tensor

from cpr_native import CheckpointStore, Costs, Full, Job, RecoveryManager
from cpr_native._native import Collection

SHARDS = 8


def table_of(rows: int, timed: bool) -> Shape:
    """Return the shape of one table of `rows` x 32; a thousandth of it when nothing is timed."""
    return Shape(tables=1, rows=rows if timed else rows // 1000, dim=32, batch=2048 if timed else 64)


class Checkpointed:
    """A table under row-wise Adagrad that trains and saves to `directory`."""

    def __init__(self, shape: Shape, directory: Path) -> None:
        self.ours = Ours(shape, "row_wise_adagrad")
        self.manager = RecoveryManager(
            self.ours.module,
            CheckpointStore(directory),
            policy=Full(),
            job=Job(total_hours=56.0, mtbf_hours=28.0, shards=SHARDS),
            costs=Costs(save=0.094, load=0.045, reschedule=0.045),
            total_samples=10**12,
        )

    @property
    def engine(self) -> Collection:
        return self.ours.module.engine

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the weight and of the optimizer state."""
        state = self.engine.state(0)
        assert state is not None
        return {"weight": self.ours.weights()[0].clone(), "state": torch.from_numpy(state.copy())}

    def save(self) -> None:
        """Commit every row and wait until it is durable."""
        self.manager.save("base", wait=True)


def seconds_to_write(path: Path, size: int) -> float:
    """Return the time to write and sync `size` bytes to a new file."""
    block = os.urandom(1 << 20)
    begin = perf_counter()
    with path.open("wb") as file:
        for _ in range(0, size, len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = perf_counter() - begin
    path.unlink()
    return seconds
