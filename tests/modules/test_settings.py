"""Settings refuse what is out of range and fill in TorchRec's defaults."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from cpr_native import (
    SGD,
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    RowWiseAdagrad,
    Trackers,
)


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
    assert users.data_type is DataType.FP32
    assert config(weight_init_min=-2.0).init_range == (-2.0, 0.1)


def test_embedding_config_has_no_pooling() -> None:
    users = EmbeddingConfig(name="users", num_embeddings=100, embedding_dim=4, feature_names=["a"])
    assert users.pooling is PoolingType.NONE
    assert users.init_range == config().init_range
    with pytest.raises(ValueError, match=r"'users': pooling: NONE"):
        config(pooling=PoolingType.NONE)


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [("FP32", "float32"), ("FP16", "float16"), ("BF16", "bfloat16"), ("FP64", "float64")],
)
def test_data_types_name_torchs_dtypes(data_type: str, dtype: str) -> None:
    assert DataType(data_type).dtype == dtype
    assert config(data_type=DataType[data_type]).data_type.dtype == dtype


def test_names_and_values_are_torchrecs() -> None:
    from torchrec.modules import embedding_configs

    for ours, theirs in (
        (PoolingType, embedding_configs.PoolingType),
        (DataType, embedding_configs.DataType),
    ):
        common = {kind.name for kind in ours} & {kind.name for kind in theirs}
        assert all(ours[name].value == theirs[name].value for name in common)
        assert {kind.name for kind in ours} - common <= {"MAX", "FP64"}


@pytest.mark.parametrize("changes", [{"data_type": "FP16"}, {"pooling": "SUM"}])
def test_setting_of_another_type(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"'users': {next(iter(changes))}"):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "table name"),
        ({"name": "a.b"}, "table name"),
        ({"num_embeddings": 0}, "num_embeddings"),
        ({"num_embeddings": 2**32}, "num_embeddings"),
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
