"""Settings of tables: what they hold, how they are pooled, what is tracked. No torch here."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BaseEmbeddingConfig",
    "DataType",
    "EmbeddingBagConfig",
    "EmbeddingConfig",
    "PoolingType",
    "Trackers",
]

MAX_ROWS = 2**32 - 1


class PoolingType(enum.Enum):
    """How the rows of a bag become one vector (names and values as in TorchRec, which has no MAX)."""

    SUM = "SUM"
    MEAN = "MEAN"
    MAX = "MAX"
    NONE = "NONE"


class DataType(enum.Enum):
    """What the weights of a table are stored in (names and values as in TorchRec, which has no FP64).

    Optimizer state is float32 in any case. The engine rounds stochastically when it writes half precision.
    """

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    FP64 = "FP64"

    @property
    def dtype(self) -> str:
        """The name of the dtype in torch and NumPy."""
        return {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16", "FP64": "float64"}[self.value]


@dataclass(frozen=True, kw_only=True)
class Trackers:
    """Which trackers a table has.

    Args:
        dirty: one bit a row, set when the row is updated, cleared by a `base` or `delta` commit.
        mfu: a counter of lookups a row (most frequently used), cleared when the row is saved.
        ssu: a bounded list of sampled rows (sub-sampled used), emptied when it is saved.
        drift: the sum of the L2 norms of a row's steps, cleared when the row is saved: an upper bound of the
            distance to the row as last saved. Known for fused optimizers only; 8 more bytes a row.
        ssu_fraction: the list holds at most this fraction of the table's rows, in (0, 1].
        ssu_period: one access in `ssu_period` is sampled, a power of two (CPR paper, section 4.2: 2), one
            for all tables of a collection that have this tracker.

    Raises:
        ValueError: a number out of its range.
    """

    dirty: bool = True
    mfu: bool = True
    ssu: bool = True
    drift: bool = False
    ssu_fraction: float = 0.125
    ssu_period: int = 2

    def __post_init__(self) -> None:
        if not 0.0 < self.ssu_fraction <= 1.0:
            raise ValueError(f"ssu_fraction: expected a number in (0, 1], got {self.ssu_fraction}")
        if self.ssu_period < 1 or self.ssu_period & (self.ssu_period - 1):
            raise ValueError(f"ssu_period: expected a power of two, got {self.ssu_period}")


@dataclass(frozen=True, kw_only=True)
class BaseEmbeddingConfig:
    """One table and the features that look it up (fields named as in TorchRec).

    Args:
        name: the table's name, unique in its collection; letters, digits, `_` and `-`.
        num_embeddings: number of rows, at least 1.
        embedding_dim: numbers a row, at least 1.
        feature_names: the features that share this table, at least one, in the order of the output.
        data_type: of the weights. FP64 is for `optimizer=None`, and then of all tables of a collection.
        weight_init_min, weight_init_max: initial weights are uniform in [min, max);
            by default -sqrt(1 / num_embeddings) and +sqrt(1 / num_embeddings), as in TorchRec.

    Raises:
        ValueError: a value out of its range, no feature, or one feature named twice.
        TypeError: a data type that isn't a `DataType`.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: Sequence[str]
    data_type: DataType = DataType.FP32
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
        if not isinstance(self.data_type, DataType):
            raise TypeError(f"{where}: data_type: expected a DataType, got {self.data_type!r}")
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


@dataclass(frozen=True, kw_only=True)
class EmbeddingBagConfig(BaseEmbeddingConfig):
    """A table of an `EmbeddingBagCollection`.

    Args:
        pooling: how a bag's rows become one vector: SUM, MEAN or MAX.

    The others are those of `BaseEmbeddingConfig`.

    Raises:
        ValueError: pooling NONE.
        TypeError: a pooling that isn't a `PoolingType`.
    """

    pooling: PoolingType = PoolingType.SUM

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pooling, PoolingType):
            raise TypeError(f"table {self.name!r}: pooling: expected a PoolingType, got {self.pooling!r}")
        if self.pooling is PoolingType.NONE:
            raise ValueError(f"table {self.name!r}: pooling: NONE is for EmbeddingConfig alone")


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(BaseEmbeddingConfig):
    """A table of an `EmbeddingCollection`, which gives a row an id; fields of `BaseEmbeddingConfig`."""

    @property
    def pooling(self) -> PoolingType:
        """NONE."""
        return PoolingType.NONE
