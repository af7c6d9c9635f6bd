"""`EmbeddingBagCollection`: all embedding tables of a model, looked up and updated in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from cpr_native.config import EmbeddingBagConfig, PoolingType, Trackers
from cpr_native.modules._call import Request
from cpr_native.modules._inputs import check_ids, check_per_sample_weights
from cpr_native.modules._jagged import Keyed, KeyedJagged, bags_of, is_keyed_jagged, keyed_tensor
from cpr_native.modules._lookup import look_up
from cpr_native.modules._memory import compute_dtype
from cpr_native.modules._places import Device
from cpr_native.modules._plan import DEFAULT_STAGING_BYTES
from cpr_native.modules._tables import TableCollection, output_names
from cpr_native.optim import FusedOptimizer


class EmbeddingBagCollection(TableCollection[EmbeddingBagConfig]):
    """Tables and the features that look them up, fused into one engine.

    Args:
        tables: at least one, with unique names. The output holds the features in the order of the tables and,
            within one, of its `feature_names`; a feature of several tables is there once for each.
        optimizer: applied inside backward (`EngineModule` has the semantics), or None: the weights get
            gradients for any torch optimizer.
        is_weighted: of a KeyedJaggedTensor: True needs its weights, False ignores them (as in TorchRec),
            None uses them if it has some.
        sparse: with `optimizer=None`, gradients are sparse with one entry a row, otherwise dense.
        seed: of the initial rows (a stateless function of seed, table and row) and of the trackers' choices.
        trackers: of every table, or a mapping from table names; tables not in it get `Trackers()`.
        rank_local: the tables of each rank of `torch.distributed` may differ.
        max_staging_bytes: memory of the rows a snapshot holds while they are written; bytes.
        device: where tables, ids, offsets, gradients and output lie: "cuda", "cuda:1" and the like; None for
            that of `_weights`, without them the CPU (as in TorchRec).
        host_memory: of tables on a GPU: weights and optimizer state lie in pinned memory of the host, where
            kernels reach them, and the trackers on the GPU. For tables larger than its memory, with a fused
            optimizer. `synchronize()` before you read or write such weights yourself.
        _weights: [num_embeddings, embedding_dim] of each table, in its data type, contiguous, on the device
            (with `host_memory` pinned): become the parameters, not copied; a Parameter stays the same object.

    Raises:
        ValueError: no table, a name twice, trackers for a table that isn't there, `_weights` that don't fit,
            `host_memory` on the CPU or without a fused optimizer.
        TypeError: an optimizer of another kind, `_weights` of another dtype.
        RuntimeError: no such GPU, or none that this build can use; the message says why.
    """

    _holder = "embedding_bags"

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        *,
        optimizer: FusedOptimizer | None,
        is_weighted: bool | None = None,
        sparse: bool = True,
        seed: int = 0,
        trackers: Trackers | Mapping[str, Trackers] | None = None,
        rank_local: bool = False,
        max_staging_bytes: int = DEFAULT_STAGING_BYTES,
        device: Device = None,
        host_memory: bool = False,
        _weights: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(
            tables,
            optimizer=optimizer,
            seed=seed,
            trackers=trackers,
            rank_local=rank_local,
            max_staging_bytes=max_staging_bytes,
            device=device,
            host_memory=host_memory,
            weights=_weights,
        )
        self.sparse = sparse
        self._is_weighted = is_weighted
        self._num_features = len(self._features)
        self._keys = [name for names in output_names(tables) for name in names]
        self._dims = [config.embedding_dim for config in tables for _ in config.feature_names]
        self._only_sums = all(config.pooling is PoolingType.SUM for config in tables)

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables' settings, in the order of the output."""
        return self._configs

    def is_weighted(self) -> bool:
        """Whether weights of a KeyedJaggedTensor are used."""
        return self._is_weighted is not False

    @overload
    def forward(self, ids: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor: ...
    @overload
    def forward(self, ids: KeyedJagged) -> Keyed: ...
    def forward(
        self,
        ids: Tensor | KeyedJagged,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor | Keyed:
        """Look up and pool every feature of a batch, all of it on `device`.

        Args:
            ids: [n], int32 or int64: all ids of the first feature's bags, then of the second's, and so
                on (the order of TorchRec's KeyedJaggedTensor); copied. Or a KeyedJaggedTensor alone: its keys
                may be in any order and more than the features. One batch size for all keys.
            offsets: [features * batch + 1], int32 or int64: where each bag begins, ascending from
                0 to n.
            per_sample_weights: [n], float32, or None; for sum pooling only; may require a gradient.
                Those of a KeyedJaggedTensor are its weights.

        Returns:
            [batch, sum of the features' dims], float32 whatever the tables hold, float64 if they hold that;
            new memory; an empty bag gives zeros. For a KeyedJaggedTensor the same in a KeyedTensor, with
            TorchRec's keys: the features, and `feature@table` for a feature of several tables.

        Raises:
            IndexError: an id out of range; names id, position and table. Nothing is counted or written. On a
                GPU it is raised by the next call, and so are offsets that don't fit.
            TypeError: a wrong dtype.
            ValueError: offsets that don't fit, a wrong shape or device, per-sample weights with mean or max
                pooling, a key that is missing, a batch size that varies by key.
        """
        if not isinstance(ids, Tensor) and is_keyed_jagged(ids):
            if offsets is not None or per_sample_weights is not None:
                raise TypeError("offsets, per_sample_weights: a KeyedJaggedTensor has its own, expected None")
            keyed: Keyed = self._keyed(ids)
            return keyed
        return self._pooled(ids, offsets, per_sample_weights)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _keyed(self, jagged: KeyedJagged) -> Keyed:
        weighted = self._is_weighted
        if weighted is None:
            weighted = jagged.weights_or_none() is not None
        bags = bags_of(jagged, self._features, weighted=weighted)
        pooled = self._pooled(bags.ids, bags.offsets, bags.weights)
        return keyed_tensor(list(self._keys), list(self._dims), pooled)

    def _pooled(self, ids: Any, offsets: Any, per_sample_weights: Tensor | None) -> Tensor:
        device = self._input_device(ids)
        check_ids("ids", ids, device)
        check_ids("offsets", offsets, device)
        if ids.ndim != 1 or offsets.ndim != 1:
            raise ValueError(
                f"ids, offsets: expected 1-D tensors, got shapes {tuple(ids.shape)}, {tuple(offsets.shape)}"
            )
        bags = offsets.shape[0] - 1
        batch, rest = bags // self._num_features, bags % self._num_features
        if rest or batch < 0:
            raise ValueError(
                f"offsets: expected features * batch + 1 elements with {self._num_features} features, "
                f"got {offsets.shape[0]}"
            )
        if per_sample_weights is not None:
            check_per_sample_weights(
                per_sample_weights,
                ids,
                pooling="sum" if self._only_sums else "mean or max",
                dtype=compute_dtype(self._weights()[0].dtype),
            )
            per_sample_weights = per_sample_weights.contiguous()
        return look_up(
            self,
            Request(ids.contiguous(), offsets.contiguous(), batch),
            per_sample_weights,
            sparse=self.sparse,
        )
