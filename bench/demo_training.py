"""The demo's DLRM in training at batch 2048, on the generator's batches, made before anything is timed."""

from __future__ import annotations

import itertools
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from sides import ALL_TRACKERS
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_native._native import Collection, Selection, Snapshot
from cpr_native.data import SyntheticClicks, kaggle_table_sizes
from cpr_native.models import DEMO, build_dlrm
from cpr_native.modules import EmbeddingBagCollection

# The demo's own tables (338k rows), and all rows of Criteo Kaggle (33.8M).
SCALES = {"demo": 0.01, "kaggle": 1.0}
BATCH = 2048
BATCHES = 200


class Training:
    """Model, dense optimizer and batches."""

    def __init__(self, scale: float, *, timed: bool) -> None:
        sizes = kaggle_table_sizes(scale) if timed else kaggle_table_sizes(scale / 1000, min_rows=100)
        batch = BATCH if timed else 64
        self.model = build_dlrm(
            DEMO.model, sizes, optimizer=DEMO.table_optimizer, trackers=ALL_TRACKERS, seed=1
        )
        self.model.train()
        self.optimizer = DEMO.dense_optimizer(self.model.dense_parameters())
        count = BATCHES if timed else 8
        clicks = SyntheticClicks(end=count * batch, batch_size=batch, table_sizes=sizes)
        self._batches = itertools.cycle(list(clicks))
        self.rows = sum(sizes)
        self.batch_size = batch

    @property
    def engine(self) -> Collection:
        embeddings = self.model.embeddings
        assert isinstance(embeddings, EmbeddingBagCollection)
        return embeddings.engine

    def step(self) -> float:
        """Train on the next batch; return the seconds it took."""
        batch = next(self._batches)
        begin = perf_counter()
        self.optimizer.zero_grad()
        logits = self.model(batch.dense, batch.ids, batch.offsets)
        binary_cross_entropy_with_logits(logits, batch.labels).backward()
        self.optimizer.step()
        return perf_counter() - begin

    def begin(self) -> Snapshot:
        """Begin a snapshot of every row."""
        return self.engine.begin([Selection.all() for _ in self.engine.tables], clears_dirty=True)

    def weights(self) -> list[NDArray[np.float32]]:
        """Return a copy of the rows of all tables."""
        return [self.engine.weight(table).copy() for table in range(len(self.engine.tables))]


def check_snapshot(training: Training, steps: int) -> None:
    """A snapshot read after some more steps must hold every row as it was when it began."""
    before = training.weights()
    snapshot = training.begin()
    losses = [training.step() for _ in range(steps)]
    assert len(losses) == steps
    taken = [np.zeros(len(weight), np.bool_) for weight in before]
    for chunk in snapshot:
        assert np.array_equal(chunk.weight, before[chunk.table][chunk.rows])
        taken[chunk.table][chunk.rows] = True
        chunk.close()
    snapshot.commit()
    assert all(rows.all() for rows in taken)
    assert any(not np.array_equal(old, new) for old, new in zip(before, training.weights(), strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in training.model.dense_parameters())
