"""The shapes S1 to S5 of the engine's benchmarks, and the ids of their batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpr_native.data import SyntheticClicks, kaggle_table_sizes
from cpr_native.data.tables import KAGGLE_TABLE_SIZES

ZIPF = 1.05
_SPREAD = 2654435761  # a prime above every table: ranks become rows far apart, one to one


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Tables of `rows[t]` x `dim`, one feature each; a batch has `batch` bags of `pooling` ids a feature.

    `measured`: ids follow the measured skew of Criteo Kaggle's 26 features, else Zipf's law.
    """

    rows: tuple[int, ...]
    dim: int
    batch: int
    pooling: int = 1
    measured: bool = False

    @property
    def tables(self) -> int:
        """Number of tables."""
        return len(self.rows)

    @property
    def ids(self) -> int:
        """Ids of one batch."""
        return self.tables * self.batch * self.pooling

    def offsets(self) -> Tensor:
        """Return the offsets of every batch: int64 [tables * batch + 1]."""
        return torch.arange(0, self.ids + 1, self.pooling, dtype=torch.int64)

    def batches(self, count: int, *, seed: int = 0) -> list[Tensor]:
        """Return `count` different batches of ids, int64 [ids], feature-major."""
        if self.measured:
            samples = count * self.batch
            clicks = SyntheticClicks(end=samples, batch_size=self.batch, table_sizes=self.rows, seed=seed)
            return [batch.ids for batch in clicks]
        rng = np.random.default_rng(seed)
        rows = np.repeat(np.array(self.rows, dtype=np.int64), self.batch * self.pooling)
        return [torch.from_numpy(_zipf(rng, rows) * _SPREAD % rows) for _ in range(count)]

    def gradient(self) -> Tensor:
        """Return an output gradient: float32 [batch, tables * dim]."""
        generator = torch.Generator().manual_seed(7)
        return torch.randn(self.batch, self.tables * self.dim, generator=generator) * 0.01

    def even_gradient(self) -> Tensor:
        """Return an output gradient whose values are equal within a table's columns of a sample.

        Then the mean of a row's squared gradient is each of its squares: row-wise Adagrad and Adagrad agree.
        """
        return self.gradient()[:, :: self.dim].repeat_interleave(self.dim, dim=1).contiguous()


def _zipf(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """Return a rank from 0 for each element of `rows`; P(rank) falls as (rank + 1) ** -ZIPF."""
    power = 1.0 - ZIPF
    rank = (((rows + 1.0) ** power - 1.0) * rng.random(rows.size) + 1.0) ** (1.0 / power) - 1.0
    return np.minimum(rank.astype(np.int64), rows - 1)


TIMED = {
    "S1": Shape(rows=(100_000,) * 26, dim=16, batch=2048),
    "S2": Shape(rows=(1_000_000,) * 26, dim=64, batch=2048),
    "S3": Shape(rows=(500_000,) * 8, dim=128, batch=2048, pooling=10),
    "S4": Shape(rows=KAGGLE_TABLE_SIZES, dim=16, batch=2048, measured=True),
    "S5": Shape(rows=(10_000_000,), dim=32, batch=65_536),
    # Over shards: the whole model, and one whose four shards have 256 MB each.
    "C1": Shape(rows=(1_000_000,) * 26, dim=64, batch=8192),
    "C2": Shape(rows=(154_000,) * 26, dim=64, batch=2048),
}
CHECKED = {
    "S1": Shape(rows=(500,) * 26, dim=16, batch=128),
    "S2": Shape(rows=(2000,) * 5, dim=64, batch=128),
    "S3": Shape(rows=(2000,) * 2, dim=128, batch=64, pooling=10),
    "S4": Shape(rows=kaggle_table_sizes(0.0002), dim=16, batch=128, measured=True),
    "S5": Shape(rows=(10_000,), dim=32, batch=4096),
    "C1": Shape(rows=(2000,) * 5, dim=64, batch=128),
    "C2": Shape(rows=(2000,) * 5, dim=64, batch=128),
}


def shape_of(name: str, timed: bool) -> Shape:
    """Return the named shape, a small one of its kind when nothing is timed."""
    return (TIMED if timed else CHECKED)[name]
