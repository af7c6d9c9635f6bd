"""`TableCollection`: what the collections of named tables share."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from cpr_native.config import BaseEmbeddingConfig, EmbeddingBagConfig, EmbeddingConfig, Trackers
from cpr_native.modules._base import EngineModule
from cpr_native.modules._places import Device, check_memory, check_shape, place_for
from cpr_native.modules._plan import EnginePlan
from cpr_native.optim import FusedOptimizer

Config = TypeVar("Config", EmbeddingBagConfig, EmbeddingConfig)


class _Table(nn.Module):
    """Holds one table's parameter, named `weight` as in TorchRec."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)


class _Tables(nn.Module):
    """Tables by name; unlike nn.ModuleDict it leaves names such as `items` and `keys` to them."""

    def __init__(self, tables: Mapping[str, _Table]) -> None:
        super().__init__()
        for name, table in tables.items():
            if hasattr(self, name):
                raise ValueError(f"table name: {name!r} is the name of an attribute of torch.nn.Module")
            self.add_module(name, table)

    def __getitem__(self, name: str) -> nn.Module:
        return cast(nn.Module, self._modules[name])


# ABC comes first, as in TorchRec's collections: Python changes `__class__` between classes of one first base.
class TableCollection(abc.ABC, EngineModule, Generic[Config]):
    """Tables by name in one engine, each a parameter `<holder>.<table>.weight`, and their features."""

    _holder: str

    def __init__(
        self,
        tables: Sequence[Config],
        *,
        optimizer: FusedOptimizer | None,
        seed: int,
        trackers: Trackers | Mapping[str, Trackers] | None,
        rank_local: bool,
        max_staging_bytes: int,
        device: Device,
        host_memory: bool,
        weights: Sequence[Tensor] | None,
    ) -> None:
        names = [config.name for config in tables]
        _check_names(names)
        if host_memory and optimizer is None:
            raise ValueError(
                "host_memory: expected a fused optimizer, got optimizer=None: torch's optimizers need "
                "gradients where the weights are"
            )
        plan = EnginePlan(
            tables=tuple(tables),
            trackers=trackers_of(names, trackers),
            optimizer=optimizer,
            seed=seed,
            max_staging_bytes=max_staging_bytes,
            place=place_for(device, weights, host_memory=host_memory),
            host_memory=host_memory,
        )
        if weights is not None:
            _check_weights(plan, weights)
        super().__init__(plan, rank_local=rank_local, weights=weights)
        memory = [self._table_view(table) for table in range(len(tables))] if weights is None else weights
        holders = {name: _Table(weight) for name, weight in zip(names, memory, strict=True)}
        self.add_module(self._holder, _Tables(holders))
        self._features = [feature for config in tables for feature in config.feature_names]
        self._adopt()

    def _weights(self) -> list[nn.Parameter]:
        tables = cast(nn.Module, self._modules[self._holder])._modules.values()
        return cast(
            list[nn.Parameter], [table._parameters["weight"] for table in tables if table is not None]
        )

    @property
    def _configs(self) -> list[Config]:
        return cast(list[Config], list(self._plan.tables))

    @property
    def feature_names(self) -> list[str]:
        """The features in the order of the ids and of the output, table by table.

        A feature of several tables appears once for each.
        """
        return list(self._features)

    @property
    def device(self) -> torch.device:
        """Where the engine is, and ids and output: `cpu` or a GPU (with `host_memory` the weights aren't)."""
        return self._device

    def memory(self) -> dict[str, int]:
        """Bytes that the engine holds for this collection.

        Returns:
            `weight`: the tables (those of `_weights` included, whoever allocated them).
            `metadata`: 8 bytes a row: the trackers and, for row-wise Adagrad, the accumulator; 16 with
                `Trackers(drift=True)`.
            `ssu`: the lists of sampled rows, at most about `4 * ssu_fraction` bytes a row.
            `state`: optimizer state beyond the metadata (0 for SGD and row-wise Adagrad).
            `staging`: rows of a snapshot that hasn't been written yet, at this moment.
        """
        return self._engine.memory()

    def mark_dirty(self, table: str, rows: Tensor | Sequence[int] | None = None) -> None:
        """Announce that `rows` (ids, or None for all) of a table were written behind torch's back.

        Raises:
            KeyError: no such table.
            IndexError: a row out of range.
        """
        names = [config.name for config in self._plan.tables]
        if table not in names:
            raise KeyError(f"no table {table!r}, expected one of {names}")
        self._mark(names.index(table), rows)


def output_names(tables: Sequence[BaseEmbeddingConfig]) -> list[list[str]]:
    """The names of the output, table by table, as in TorchRec.

    A feature's own name, or `feature@table` for a feature of several tables.
    """
    features = [feature for config in tables for feature in config.feature_names]
    return [
        [f"{name}@{config.name}" if features.count(name) > 1 else name for name in config.feature_names]
        for config in tables
    ]


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise ValueError("expected at least one table")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"table names must be unique in a collection, got twice: {', '.join(twice)}")


def _check_weights(plan: EnginePlan, weights: Sequence[Tensor]) -> None:
    if len(weights) != len(plan.tables):
        raise ValueError(f"_weights: expected one for each of {len(plan.tables)} tables, got {len(weights)}")
    for config, weight in zip(plan.tables, weights, strict=True):
        where = f"table {config.name!r}: weight"
        check_shape(where, config, weight)
        dtype = str(weight.dtype).removeprefix("torch.")
        if dtype != config.data_type.dtype:
            raise TypeError(f"{where}: expected {config.data_type.dtype}, got {dtype}")
        check_memory(where, weight, plan.place, host_memory=plan.host_memory)


def trackers_of(
    names: Sequence[str], trackers: Trackers | Mapping[str, Trackers] | None
) -> tuple[Trackers, ...]:
    """The trackers of each table; raises ValueError for those of a table that isn't there."""
    if trackers is None:
        trackers = Trackers()
    if isinstance(trackers, Trackers):
        return (trackers,) * len(names)
    unknown = sorted(set(trackers) - set(names))
    if unknown:
        raise ValueError(f"trackers: no table {', '.join(unknown)}, expected some of {list(names)}")
    return tuple(trackers.get(name, Trackers()) for name in names)
