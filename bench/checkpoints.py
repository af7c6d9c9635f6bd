"""One table of dim 32 with its recovery manager, for the benchmarks of snapshots, commits and restores."""

from __future__ import annotations

from pathlib import Path

import torch
from shapes import Shape
from sides import Ours
from torch import Tensor

from cpr_native import CheckpointStore, Costs, Delta, Job, RecoveryManager
from cpr_native._native import Collection

SHARDS = 8


def table_of(rows: int, timed: bool, *, dim: int = 32) -> Shape:
    """Return the shape of one table of `rows` x `dim`; a thousandth of it when nothing is timed."""
    return Shape(rows=(rows if timed else rows // 1000,), dim=dim, batch=65_536 if timed else 64)


def manager_of(model: torch.nn.Module, directory: Path) -> RecoveryManager:
    """Return a manager that saves `model` to `directory`, in 8 shards, when it is asked to."""
    return RecoveryManager(
        model,
        CheckpointStore(directory),
        policy=Delta(),
        job=Job(total_hours=56.0, mtbf_hours=28.0, shards=SHARDS),
        costs=Costs(save=0.094, load=0.045, reschedule=0.045),
        total_samples=10**12,
    )


class Checkpointed:
    """A table under row-wise Adagrad that trains and saves to `directory`."""

    def __init__(self, shape: Shape, directory: Path) -> None:
        self.ours = Ours(shape)
        self.directory = directory
        self.manager = manager_of(self.ours.module, directory)

    @property
    def engine(self) -> Collection:
        return self.ours.module.engine

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the weight and of the optimizer state."""
        state = self.engine.state(0)
        assert state is not None
        return {"weight": self.ours.weights()[0].clone(), "state": torch.from_numpy(state)}

    def files(self) -> dict[Path, int]:
        """Return the files of the checkpoint directory that have bytes, with their sizes."""
        sizes = {path: path.stat().st_size for path in self.directory.rglob("*") if path.is_file()}
        return {path: size for path, size in sizes.items() if size}
