"""Settings refuse what is out of range and fill in TorchRec's defaults."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from cpr_native import SGD, EmbeddingBagConfig, PoolingType, RowWiseAdagrad, Trackers


def config(**changes: Any) -> EmbeddingBagConfig:
    settings: dict[str, Any] = {
        "name": "users",
        "num_embeddings": 100,
        "embedding_dim": 4,
        "feature_names": ["a", "b"],
    }
    return EmbeddingBagConfig(**{**settings, **changes})


def test_defaults_are_torchrecs() -> None:
    users = config()
    assert users.pooling is PoolingType.SUM
    assert users.init_range == (-math.sqrt(1 / 100), math.sqrt(1 / 100))
    assert users.feature_names == ("a", "b")
    assert users.num_features == 2
    assert config(weight_init_min=-2.0).init_range == (-2.0, 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "table name"),
        ({"name": "a.b"}, "table name"),
        ({"num_embeddings": 0}, "num_embeddings"),
        ({"num_embeddings": 2**32 + 1}, "num_embeddings"),
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"feature_names": []}, "at least one feature"),
        ({"feature_names": ["a", "a"]}, "named twice"),
        ({"weight_init_min": 1.0, "weight_init_max": 0.0}, "weight_init_min"),
        ({"weight_init_max": math.inf}, "finite"),
    ],
)
def test_table_out_of_range(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    "changes", [{"ssu_fraction": 0.0}, {"ssu_fraction": 1.5}, {"ssu_period": 0}, {"ssu_period": 3}]
)
def test_trackers_out_of_range(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Trackers(**changes)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (SGD, {"lr": -1.0}),
        (SGD, {"lr": math.nan}),
        (RowWiseAdagrad, {"lr": math.inf}),
        (RowWiseAdagrad, {"eps": 0.0}),
        (RowWiseAdagrad, {"initial_accumulator": -1.0}),
    ],
)
def test_optimizer_out_of_range(kind: Any, changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        kind(**{"lr": 0.1, **changes})


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SGD(lr=0.1).lr = 0.2  # type: ignore[misc]
