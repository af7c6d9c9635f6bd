"""`EmbeddingBagCollection`: all embedding tables of a model, looked up and updated in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from cpr_native.config import EmbeddingBagConfig, PoolingType, Trackers
from cpr_native.modules._base import EngineModule
from cpr_native.modules._inputs import check_ids, check_per_sample_weights
from cpr_native.modules._lookup import Request, look_up, run_eagerly
from cpr_native.modules._plan import DEFAULT_STAGING_BYTES, EnginePlan
from cpr_native.optim import FusedOptimizer


class _Table(nn.Module):
    """Holds one table's parameter under TorchRec's name, `embedding_bags.<table>.weight`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


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


class EmbeddingBagCollection(EngineModule):
    """Tables and the features that look them up, fused into one engine.

    Args:
        tables: at least one; table names and feature names are unique in the collection. The output holds the
            features in the order of the tables and, within one, of its `feature_names`.
        optimizer: `SGD` or `RowWiseAdagrad`, applied inside backward (`EngineModule` has the semantics), or
            None: the weights get sparse gradients, one entry a row, for any torch optimizer that takes them.
        seed: of the initial rows (a stateless function of seed, table and row) and of the trackers' choices.
        trackers: of every table, or a mapping from table names; tables not in it get `Trackers()`.
        rank_local: the tables of each rank of `torch.distributed` may differ.
        max_staging_bytes: memory of the rows a snapshot holds while they are written; bytes.

    Raises:
        ValueError: no table, a name twice, or trackers for a table that isn't there.
        TypeError: an optimizer of another kind.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        optimizer: FusedOptimizer | None,
        seed: int = 0,
        trackers: Trackers | Mapping[str, Trackers] | None = None,
        rank_local: bool = False,
        max_staging_bytes: int = DEFAULT_STAGING_BYTES,
    ) -> None:
        names = [config.name for config in tables]
        _check_unique("table", names)
        _check_unique("feature", [feature for config in tables for feature in config.feature_names])
        plan = EnginePlan(
            tables=tuple(tables),
            trackers=_trackers_of(names, trackers),
            optimizer=optimizer,
            seed=seed,
            max_staging_bytes=max_staging_bytes,
        )
        super().__init__(plan, rank_local=rank_local)
        self.embedding_bags = _Tables(
            {config.name: _Table(self._table_view(table)) for table, config in enumerate(tables)}
        )
        self._num_features = len(plan.features)
        self._has_mean = any(config.pooling is PoolingType.MEAN for config in tables)
        self._adopt()

    def _weights(self) -> list[nn.Parameter]:
        holders = self.embedding_bags._modules.values()
        weights = [holder._parameters["weight"] for holder in holders if holder is not None]
        return cast(list[nn.Parameter], weights)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables' settings, in the order of the output."""
        return list(self._plan.tables)

    @property
    def feature_names(self) -> list[str]:
        """The features in the order of the ids and of the output."""
        return [feature for config in self._plan.tables for feature in config.feature_names]

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

    @run_eagerly
    def forward(self, ids: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Look up and pool every feature of a batch.

        Args:
            ids: [n], int32 or int64, CPU: all ids of the first feature's bags, then of the second's, and so
                on (the order of TorchRec's KeyedJaggedTensor); copied.
            offsets: [features * batch + 1], int32 or int64, CPU: where each bag begins, ascending from 0 to
                n.
            per_sample_weights: [n], float32, CPU, or None; for sum pooling only; may require a gradient.

        Returns:
            [batch, sum of the features' dims], float32, new memory; an empty bag gives zeros.

        Raises:
            IndexError: an id out of range; names id, position and table. Nothing is counted or written.
            TypeError: a wrong dtype.
            ValueError: offsets that don't fit, a wrong shape or device, per-sample weights with mean pooling.
        """
        check_ids("ids", ids)
        check_ids("offsets", offsets)
        if ids.ndim != 1 or offsets.ndim != 1:
            raise ValueError(
                f"ids, offsets: expected 1-D tensors, got shapes {tuple(ids.shape)}, {tuple(offsets.shape)}"
            )
        batch, rest = divmod(offsets.shape[0] - 1, self._num_features)
        if rest or batch < 0:
            raise ValueError(
                f"offsets: expected features * batch + 1 elements with {self._num_features} features, "
                f"got {offsets.shape[0]}"
            )
        if per_sample_weights is not None:
            check_per_sample_weights(per_sample_weights, ids, mean=self._has_mean)
            per_sample_weights = per_sample_weights.contiguous()
        return look_up(
            self, Request(ids.contiguous(), offsets.contiguous(), batch), per_sample_weights, sparse=True
        )


def _check_unique(kind: str, names: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"expected at least one {kind}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} names must be unique in a collection, got twice: {', '.join(twice)}")


def _trackers_of(
    names: Sequence[str], trackers: Trackers | Mapping[str, Trackers] | None
) -> tuple[Trackers, ...]:
    if trackers is None:
        trackers = Trackers()
    if isinstance(trackers, Trackers):
        return (trackers,) * len(names)
    unknown = sorted(set(trackers) - set(names))
    if unknown:
        raise ValueError(f"trackers: no table {', '.join(unknown)}, expected some of {list(names)}")
    return tuple(trackers.get(name, Trackers()) for name in names)
