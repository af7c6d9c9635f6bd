"""A Lightning job for the tests: `python lightning_job.py FOLDER BATCH` is killed by SIGKILL before BATCH."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import cpr_native as cpr
from cpr_native.lightning import EpochLoader, RecoveryCallback
from cpr_native.policy import Policy

BATCH, BATCHES, EPOCHS = 4, 7, 3
SAMPLES = BATCH * BATCHES - 1  # the last batch is short
JOB = cpr.Job(total_hours=20.0, mtbf_hours=10.0, shards=2)
COSTS = cpr.Costs(save=0.2, load=0.1, reschedule=0.1)  # Full(): a save every 2 hours


class Net(LightningModule):
    """Embedding and layers with dropout; its gradients and its validation draw random numbers."""

    def __init__(self, engine: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        table = cpr.EmbeddingBag(20, 4, mode="sum", optimizer=cpr.SGD(lr=0.1)) if engine else None
        self.table = table or torch.nn.EmbeddingBag(20, 4, mode="sum")
        self.top = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        ids, label = batch
        return torch.nn.functional.mse_loss(self.top(self.table(ids)).squeeze(1), label)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.top.train()  # its dropout draws
        self.loss(batch)

    def configure_optimizers(self) -> Any:
        layers = self.top.parameters() if isinstance(self.table, cpr.EmbeddingBag) else self.parameters()
        optimizer = torch.optim.Adam(layers, lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(2)
    return TensorDataset(
        torch.randint(0, 20, (SAMPLES, 3), generator=draw), torch.rand(SAMPLES, generator=draw)
    )


def train_loader() -> EpochLoader:
    return EpochLoader(DataLoader(data(), batch_size=BATCH, shuffle=True))


def callback(folder: Path, policy: Policy | None = None, **options: Any) -> RecoveryCallback:
    settings: dict[str, Any] = {"job": JOB, "costs": COSTS, "total_samples": SAMPLES * EPOCHS, **options}
    return RecoveryCallback(
        cpr.CheckpointStore(folder), policy=policy or cpr.Full(), background=False, **settings
    )


class Interrupt(Callback):
    """Calls `act` before the `batch`-th batch of the job."""

    def __init__(self, batch: int, act: Any) -> None:
        self.batch = batch
        self.act = act

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.fit_loop.total_batch_idx == self.batch:
            self.act()


def run(
    model: Net, *callbacks: Callback, loader: Any = None, ckpt_path: str | None = None, **options: Any
) -> Trainer:
    """Train `model`; the RNG starts the same."""
    torch.manual_seed(7)
    limits = {} if "max_steps" in options else {"max_epochs": EPOCHS}
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks), **{**limits, **options},
    )  # fmt: skip
    validation = DataLoader(data(), batch_size=8, shuffle=True)
    trainer.fit(model, loader or train_loader(), validation, ckpt_path=ckpt_path)
    return trainer


def quiet() -> None:
    """Leave out Lightning's advice about workers, and its own deprecated calls."""
    warnings.filterwarnings("ignore", message=r"(?s).*does not have many workers")
    warnings.filterwarnings("ignore", message=r"(?s).*Your `val_dataloader`'s sampler has shuffling enabled")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)


if __name__ == "__main__":
    quiet()
    kill = Interrupt(int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
    run(Net(), callback(Path(sys.argv[1])), kill, accumulate_grad_batches=2)
