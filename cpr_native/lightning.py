"""Saves and recovery of a job that PyTorch Lightning's `Trainer` runs (needs the `lightning` package)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from cpr_native.attachment import Attachment, attach, attachments_of
from cpr_native.modules import EmbeddingFusedOptimizer, EngineModule
from cpr_native.recovery import RecoveryManager, RecoveryReport, ResumableLoader
from cpr_native.recovery.dense import Stateful, rng_state, set_rng_state

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("cpr_native.lightning needs Lightning: pip install 'cpr-native[lightning]'") from error

if TYPE_CHECKING:
    from cpr_native.overhead import Costs, Job
    from cpr_native.policy import Policy
    from cpr_native.store import CheckpointStore


def batch_size(batch: Any) -> int:
    """Return the first dimension of the first tensor in `batch`; ValueError when there is none."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return leaf.shape[0]
    raise ValueError("a batch holds no tensor with a first dimension: give RecoveryCallback a batch_size_of")


class EpochLoader(ResumableLoader[Any]):
    """A loader whose position Lightning saves and restores: each iteration is one epoch.

    `loader`: sized, as a `DataLoader` of a sized dataset; without a state of its own: one that has it
    (torchdata's `StatefulDataLoader`) is handed to Lightning as it is. Going back opens the epoch with the
    RNG state of its beginning and passes over the batches already seen. Raises TypeError, ValueError.
    """

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, Stateful):
            raise ValueError(f"EpochLoader: {type(loader).__name__} keeps its own position: use it as it is")
        self._length = len(loader)
        self._rng: Mapping[str, Any] = {}
        super().__init__(loader)

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """Go through an epoch: the rest of it after `load_state_dict`, otherwise from its start."""
        reopened = self._reopen
        if reopened:
            set_rng_state(self._rng)  # going on, Lightning has opened the validation's loaders
        if not reopened or self._batches >= self._length:
            self._batches, self._epoch_rng, self._reopen = 0, None, False
        for batch in self._open():
            self._batches += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch handed out last and the RNG as it is now."""
        return {**super().state_dict(), "rng": rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a position of `state_dict`; the next iteration begins there, with the RNG of that time."""
        super().load_state_dict(state_dict)
        self._rng = state_dict["rng"]


class _Position:
    """Lightning's counters (epoch, batches, optimizer steps) and its loaders' positions."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        return dict(self._trainer.fit_loop.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._trainer.fit_loop.load_state_dict(state_dict)


class _Others:
    """The state of the trainer's other callbacks that have one."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = {callback.state_key: callback for callback in callbacks}

    def state_dict(self) -> dict[str, Any]:
        return {key: callback.state_dict() for key, callback in self._callbacks.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key, callback in self._callbacks.items():
            if state_dict.get(key):
                callback.load_state_dict(state_dict[key])


class RecoveryCallback(Callback):
    """Saves a Lightning job as it trains, resumes it, and recovers lost shards.

    At the start of `fit` it goes on from the newest intact commit of `store`, if there is one: weights,
    optimizers, learning-rate schedulers, gradient scaler, RNG, Lightning's counters, the position in the data
    and the other callbacks' state. A save is due after so many samples, at the end of a batch after which the
    optimizer made a step, never between the batches whose gradients it accumulates; that of an epoch's last
    batch when the epoch ends. At the end of `fit` the rest is committed.

    A model with embedding modules of this package, or attached already, is taken as it is; any other is
    attached for the time of `fit` (`attach(model, blocks=blocks)`). Tables with a fused optimizer are updated
    in each backward, also where Lightning accumulates gradients. Validation leaves the RNG of the training as
    it was, so that going on from any batch gives the same bits. The training data must keep its position:
    `EpochLoader(loader)`, or a loader with `state_dict()` (then Lightning draws when it goes on from a
    validation inside of an epoch, and the bits differ). One process, no `ckpt_path`; `ReduceLROnPlateau`
    over epochs loses its step when a job goes on from the end of an epoch (as from Lightning's checkpoints).

    `store`, `policy`, `job`, `costs`, `total_samples` and `settings`: as `RecoveryManager`, which is made
    when `fit` begins (`manager`: None before, the last one after it); `settings["app_state"]` is saved beside
    what is found here; `blocks`: as in `attach`; `batch_size_of(batch)`: samples in it. Raises ValueError
    when `fit` starts for a job that it cannot resume, and what the manager raises.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        policy: Policy,
        job: Job,
        costs: Costs,
        total_samples: int,
        blocks: Literal["rows", "tensors"] | int | None = "rows",
        batch_size_of: Callable[[Any], int] = batch_size,
        **settings: Any,
    ) -> None:
        for name in ("dense_optimizer", "loader"):
            if name in settings:
                raise TypeError(f"RecoveryCallback: {name} is the trainer's")
        self._store = store
        self._settings = {
            **settings, "policy": policy, "job": job, "costs": costs, "total_samples": total_samples
        }  # fmt: skip
        self._blocks = blocks
        self._batch_size_of = batch_size_of
        self._attachment: Attachment | None = None
        self._scaler: torch.amp.GradScaler | None = None
        self._samples = 0
        self._losses: list[float] = []
        self._optimizer_steps = 0
        self._rng: Mapping[str, Any] | None = None  # of the training; None outside of fit
        self.manager: RecoveryManager | None = None

    def recover(self, failed_shards: Sequence[int]) -> RecoveryReport:
        """Bring the rows of `failed_shards` back, between two batches; see `RecoveryManager.recover`.

        Raises ValueError before `fit` and under full recovery, for which `fit` must be started again.
        """
        if self.manager is None or not self.manager.running:
            raise ValueError("recover() goes between two batches of fit()")
        if self.manager.policy.recovery == "full":
            raise ValueError(
                f"policy {self.manager.policy.name!r} sends the whole job back, which a running fit() "
                "cannot: start fit() again, in a new process, and it goes on from the newest exact point"
            )
        return self.manager.recover(failed_shards)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the manager and put everything back to the newest commit."""
        if trainer.world_size > 1:
            raise ValueError(f"RecoveryCallback: expected one process, got {trainer.world_size}")
        if trainer.ckpt_path is not None:
            raise ValueError(
                f"RecoveryCallback: expected no ckpt_path, the store has the state, got {trainer.ckpt_path}"
            )
        optimizers = [each for each in trainer.optimizers if not isinstance(each, EmbeddingFusedOptimizer)]
        engines = any(isinstance(module, EngineModule) for module in pl_module.modules())
        if not engines and not attachments_of(pl_module):
            self._attachment = attach(pl_module, blocks=self._blocks, optimizer=optimizers)
        try:
            self.manager = self._made(trainer, pl_module, optimizers)
            self.manager.resume()
        except BaseException:
            self._release()
            raise
        self._rng = rng_state()
        self._optimizer_steps = trainer.global_step
        self._samples, self._losses = 0, []

    def _made(
        self, trainer: Trainer, pl_module: LightningModule, optimizers: Sequence[torch.optim.Optimizer]
    ) -> RecoveryManager:
        settings = dict(self._settings)
        members: dict[str, Any] = {"lightning": _Position(trainer)}
        members |= {
            f"scheduler_{number}": config.scheduler
            for number, config in enumerate(trainer.lr_scheduler_configs)
        }
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self._scaler is not None:
            members["grad_scaler"] = self._scaler
        members["callbacks"] = _Others([each for each in trainer.callbacks if each is not self])  # type: ignore[attr-defined]
        if not attachments_of(pl_module):
            settings["dense_optimizer"] = optimizers[0] if optimizers else None
            members |= {f"optimizer_{number}": each for number, each in enumerate(optimizers) if number}
        return RecoveryManager(
            pl_module, self._store, **{**settings, "app_state": {**members, **settings.get("app_state", {})}}
        )

    def _release(self) -> None:
        """End what lasts for `fit`."""
        attachment, self._attachment = self._attachment, None
        self._rng = None
        if attachment is not None:
            attachment.detach()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the data has a position, and begin the base unless the job was resumed."""
        for loader in tree_leaves(trainer.train_dataloader):
            if not isinstance(loader, Stateful):
                raise ValueError(
                    f"a job that goes on needs the position in its data: {type(loader).__name__} keeps "
                    "none; give fit() a cpr_native.lightning.EpochLoader of it, or a loader with state_dict()"
                )
        assert self.manager is not None
        assert self._rng is not None
        if self.manager.running and not trainer.fit_loop.resumed_on_epoch_end:
            set_rng_state(self._rng)  # opening a loader at its position has drawn
        self.manager.start()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Tell the tables how the loss is scaled."""
        if self._scaler is not None:
            for module in pl_module.modules():
                if isinstance(module, EngineModule):
                    module.grad_scale = 1.0 / self._scaler.get_scale()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and the step when the optimizer made one."""
        self._samples += self._batch_size_of(batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        assert self.manager is not None
        if isinstance(loss, torch.Tensor) and self.manager.observes:
            self._losses.append(float(loss.detach()))
        if trainer.global_step > self._optimizer_steps and not trainer.is_last_batch:
            self._step(trainer)
        self._rng = rng_state()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the RNG back to where the last batch left it."""
        if self._rng is not None:
            set_rng_state(self._rng)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the step of the epoch's last batch."""
        if trainer.global_step > self._optimizer_steps:
            self._step(trainer)

    def _step(self, trainer: Trainer) -> None:
        assert self.manager is not None
        self._optimizer_steps = trainer.global_step
        samples, self._samples = self._samples, 0
        losses, self._losses = self._losses, []
        if losses:
            self.manager.observe(sum(losses) / len(losses))
        self.manager.step(samples)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Commit the rest."""
        assert self.manager is not None
        self.manager.close()
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Wait for the save in flight; nothing else is written."""
        if self.manager is not None:
            self.manager.__exit__(type(exception), exception, None)
            self._release()
