"""Models over an `EmbeddingBagCollection`."""

from __future__ import annotations

from cpr_native.models.dlrm import DLRM, DLRMConfig, build_dlrm
from cpr_native.models.presets import CRITEO, DEMO, KAGGLE, TERABYTE, Recipe

__all__ = ["CRITEO", "DEMO", "DLRM", "KAGGLE", "TERABYTE", "DLRMConfig", "Recipe", "build_dlrm"]
