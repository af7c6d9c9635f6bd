"""Settings of tables: `EmbeddingBagConfig`, `PoolingType` and `Trackers`. No torch here."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["EmbeddingBagConfig", "PoolingType", "Trackers"]

MAX_ROWS = 2**32


class PoolingType(enum.Enum):
    """How the rows of a bag become one vector (names and values as in TorchRec)."""

    SUM = "SUM"
    MEAN = "MEAN"


@dataclass(frozen=True, kw_only=True)
class Trackers:
    """Which trackers a table has.

    Args:
        dirty: one bit a row, set when the row is updated, cleared by a `base` or `delta` commit.
        mfu: a counter of lookups a row (most frequently used), cleared when the row is saved.
        ssu: a bounded list of sampled rows (sub-sampled used), emptied when it is saved.
        ssu_fraction: the list holds at most this fraction of the table's rows, in (0, 1].
        ssu_period: one access in `ssu_period` is sampled, a power of two (CPR paper, section 4.2: 2), one
            for all tables of a collection that have this tracker.

    Raises:
        ValueError: a number out of its range.
    """

    dirty: bool = True
    mfu: bool = True
    ssu: bool = True
    ssu_fraction: float = 0.125
    ssu_period: int = 2

    def __post_init__(self) -> None:
        if not 0.0 < self.ssu_fraction <= 1.0:
            raise ValueError(f"ssu_fraction: expected a number in (0, 1], got {self.ssu_fraction}")
        if self.ssu_period < 1 or self.ssu_period & (self.ssu_period - 1):
            raise ValueError(f"ssu_period: expected a power of two, got {self.ssu_period}")


@dataclass(frozen=True, kw_only=True)
class EmbeddingBagConfig:
    """One table and the features that look it up (fields named as in TorchRec).

    Args:
        name: the table's name, unique in its collection; letters, digits, `_` and `-`.
        num_embeddings: number of rows, at least 1.
        embedding_dim: floats a row, at least 1.
        feature_names: the features that share this table, at least one, in the order of the output.
        pooling: how a bag's rows become one vector.
        weight_init_min, weight_init_max: initial weights are uniform in [min, max);
            by default -sqrt(1 / num_embeddings) and +sqrt(1 / num_embeddings), as in TorchRec.

    Raises:
        ValueError: a value out of its range, no feature, or one feature named twice.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: Sequence[str]
    pooling: PoolingType = PoolingType.SUM
    weight_init_min: float | None = None
    weight_init_max: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_names", tuple(self.feature_names))
        if not self.name or not all(char.isalnum() or char in "_-" for char in self.name):
            raise ValueError(f"table name: expected letters, digits, '_' and '-', got {self.name!r}")
        where = f"table {self.name!r}"
        if not 1 <= self.num_embeddings <= MAX_ROWS:
            raise ValueError(f"{where}: num_embeddings: expected 1 to {MAX_ROWS}, got {self.num_embeddings}")
        if self.embedding_dim < 1:
            raise ValueError(f"{where}: embedding_dim: expected at least 1, got {self.embedding_dim}")
        if not self.feature_names or not all(self.feature_names):
            raise ValueError(
                f"{where}: expected at least one feature, each with a name, got {self.feature_names}"
            )
        if len(set(self.feature_names)) != len(self.feature_names):
            raise ValueError(f"{where}: a feature is named twice in {self.feature_names}")
        low, high = self.init_range
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(
                f"{where}: expected finite weight_init_min <= weight_init_max, got {low}, {high}"
            )

    @property
    def init_range(self) -> tuple[float, float]:
        """The range of the initial weights, with the default filled in."""
        bound = math.sqrt(1.0 / self.num_embeddings)
        low = -bound if self.weight_init_min is None else self.weight_init_min
        high = bound if self.weight_init_max is None else self.weight_init_max
        return low, high

    @property
    def num_features(self) -> int:
        """Number of features that share the table."""
        return len(self.feature_names)
