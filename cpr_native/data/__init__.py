"""Click data: a streaming reader of Criteo files, a generator with Criteo's skew, and the metrics of both."""

from __future__ import annotations

from cpr_native.data._lines import count_lines
from cpr_native.data.batch import ClickBatch
from cpr_native.data.criteo import CriteoReader, split_lines
from cpr_native.data.metrics import auc, log_loss
from cpr_native.data.synthetic import SyntheticClicks
from cpr_native.data.tables import (
    CATEGORICAL_FEATURES,
    DENSE_FEATURES,
    KAGGLE_TABLE_SIZES,
    hashed_table_sizes,
    kaggle_table_sizes,
)

__all__ = [
    "CATEGORICAL_FEATURES",
    "DENSE_FEATURES",
    "KAGGLE_TABLE_SIZES",
    "ClickBatch",
    "CriteoReader",
    "SyntheticClicks",
    "auc",
    "count_lines",
    "hashed_table_sizes",
    "kaggle_table_sizes",
    "log_loss",
    "split_lines",
]
