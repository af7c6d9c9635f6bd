"""A small emulation: three skewed tables, 4096 samples, eight shards of which two are lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cpr_native.data import ClickBatch
from cpr_native.emulate import FailureSchedule, given_failures, parse_failure
from cpr_native.emulate.settings import Emulation
from cpr_native.models import DLRMConfig, Recipe
from cpr_native.optim import RowWiseAdagrad
from cpr_native.overhead import KAGGLE

SIZES = (4000, 980, 40)
SAMPLES = 4096
RECIPE = Recipe(
    model=DLRMConfig(embedding_dim=8, bottom=(16, 8), top=(16, 1)),
    batch_size=64,
    table_optimizer=RowWiseAdagrad(lr=0.05),
    dense_lr=0.02,
)


class TinyLoader:
    """Samples of three skewed tables whose label depends on the rows looked up."""

    def __init__(self, begin: int, end: int, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(7)
        total = SAMPLES + 1024
        uniform = torch.rand(len(SIZES), total, generator=generator)
        sizes = torch.tensor(SIZES, dtype=torch.float32)[:, None]
        rows = (uniform.square() * sizes).long()
        self._ids = rows * 7919 % torch.tensor(SIZES)[:, None]
        self._dense = torch.rand(total, 13, generator=generator)
        signal = ((rows % 5) - 2).sum(0) + self._dense.sum(1) - 6.5
        self._labels = (torch.rand(total, generator=generator) < torch.sigmoid(signal)).float()
        self._begin, self._end, self._batch_size = begin, end, batch_size
        self._position = begin

    def __iter__(self) -> Iterator[ClickBatch]:
        while self._position < self._end:
            first, last = self._position, min(self._position + self._batch_size, self._end)
            self._position = last
            ids = self._ids[:, first:last].contiguous().reshape(-1)
            yield ClickBatch(
                dense=self._dense[first:last],
                ids=ids,
                offsets=torch.arange(ids.numel() + 1),
                labels=self._labels[first:last],
            )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position = state["position"]


class TinySource:
    table_sizes = SIZES
    train_samples = SAMPLES

    def train(self, batch_size: int) -> TinyLoader:
        return TinyLoader(0, SAMPLES, batch_size)

    def held_out(self, batch_size: int) -> TinyLoader:
        return TinyLoader(SAMPLES, SAMPLES + 1024, batch_size)

    def describe(self) -> dict[str, Any]:
        return {"source": "tiny"}


def schedule(*failures: str) -> FailureSchedule:
    return given_failures(map(parse_failure, failures), total_hours=56.0, num_shards=8)


EMULATION = Emulation(
    job=KAGGLE.job, costs=KAGGLE.costs, schedule=schedule("13.1:3", "40.9:6"), recipe=RECIPE, seed=5
)
