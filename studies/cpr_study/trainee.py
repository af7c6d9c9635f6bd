"""A model in training, with the counts and drifts of its rows since the start."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from cpr_native._tensor import describe
from cpr_native.config import Trackers
from cpr_native.data import ClickBatch, auc, log_loss
from cpr_native.models import DLRM, build_dlrm
from cpr_study.setups import Samples, SetUp


class Trainee:
    """A DLRM and its dense optimizer, both started from `seed`."""

    def __init__(self, setup: SetUp, table_sizes: tuple[int, ...], seed: int) -> None:
        self.model: DLRM = build_dlrm(
            setup.recipe.model,
            table_sizes,
            optimizer=setup.recipe.table_optimizer,
            trackers=Trackers(ssu=False, drift=True),
            seed=seed,
        )
        self._setup = setup
        self.optimizer = setup.recipe.dense_optimizer(self.model.dense_parameters())

    @property
    def engine(self) -> Any:
        """The native collection."""
        return self.model.embeddings.engine

    @property
    def tables(self) -> range:
        """Numbers of the tables."""
        return range(len(self.engine.tables))

    def copy(self) -> Trainee:
        """Return a copy that trains on to the same bits."""
        twin = copy.copy(self)
        twin.model = copy.deepcopy(self.model)
        twin.optimizer = self._setup.recipe.dense_optimizer(twin.model.dense_parameters())
        twin.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return twin

    def step(self, batch: ClickBatch) -> float:
        """Train on `batch`; return its mean log loss before that."""
        self.optimizer.zero_grad()
        logits = self.model(batch.dense, batch.ids, batch.offsets)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return float(loss.detach())

    def evaluate(self, samples: Samples) -> tuple[float, float]:
        """Return AUC and log loss on the held-out samples."""
        self.model.eval()
        with torch.no_grad():
            logits = [self.model(b.dense, b.ids, b.offsets).numpy() for b in samples.held_out]
        self.model.train()
        truth = np.concatenate([batch.labels.numpy() for batch in samples.held_out])
        scores = np.concatenate(logits).astype(np.float64)
        return auc(truth, scores), log_loss(truth, scores)

    def perturb_dense(self, relative: float, seed: int) -> None:
        """Multiply every dense parameter by 1 + `relative` times a standard normal number."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.dense_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1.0 + relative * noise)

    def weight(self, table: int) -> NDArray[np.float32]:
        """Rows of a table, [rows, dim], aliased."""
        weight: NDArray[np.float32] = self.engine.weight(table)
        return weight

    def state(self, table: int) -> NDArray[np.float32]:
        """Copy of the optimizer state of a table, [rows]."""
        state: NDArray[np.float32] = self.engine.state(table)
        return state

    def load(
        self, table: int, begin: int, end: int, weight: NDArray[np.float32], state: NDArray[np.float32]
    ) -> None:
        """Put rows [begin, end) to `weight` and `state` (arrays of all rows); their trackers restart at 0."""
        rows = np.arange(begin, end, dtype=np.int64)
        if len(rows):
            self.engine.load_rows(
                table,
                describe(rows),
                describe(np.ascontiguousarray(weight[begin:end])),
                describe(np.ascontiguousarray(state[begin:end])),
            )
