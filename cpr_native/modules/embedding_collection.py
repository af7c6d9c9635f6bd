"""`EmbeddingCollection`: the tables of a sequence model, a row an id, looked up and updated in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from cpr_native.config import EmbeddingConfig, Trackers
from cpr_native.modules._call import Request
from cpr_native.modules._inputs import check_ids, check_offsets
from cpr_native.modules._jagged import Jagged, KeyedJagged, bags_of, is_keyed_jagged, jagged_tensor
from cpr_native.modules._lookup import look_up
from cpr_native.modules._places import Device
from cpr_native.modules._plan import DEFAULT_STAGING_BYTES
from cpr_native.modules._tables import TableCollection, output_names
from cpr_native.optim import FusedOptimizer


class EmbeddingCollection(TableCollection[EmbeddingConfig]):
    """Tables that give a row an id, without pooling, fused into one engine.

    Args:
        tables: at least one, with unique names, all of one `embedding_dim`.
        optimizer: applied inside backward (`EngineModule` has the semantics), or None: the weights get
            gradients for any torch optimizer.
        need_indices: the JaggedTensors of the result carry the ids as their weights, as in TorchRec.
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
        ValueError: no table, a name twice, several dims, trackers for a table that isn't there, `_weights`
            that don't fit, `host_memory` on the CPU or without a fused optimizer.
        TypeError: an optimizer of another kind, `_weights` of another dtype.
        RuntimeError: no such GPU, or none that this build can use; the message says why.
    """

    _holder = "embeddings"

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        *,
        optimizer: FusedOptimizer | None,
        need_indices: bool = False,
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
        self._need_indices = need_indices
        self._outputs = output_names(tables)
        self._keys = [name for names in self._outputs for name in names]

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The tables' settings, in the order of the output."""
        return self._configs

    def embedding_dim(self) -> int:
        """The length of a row."""
        return self._plan.tables[0].embedding_dim

    def embedding_names_by_table(self) -> list[list[str]]:
        """The keys of the result, table by table: the features, `feature@table` if of several tables."""
        return [list(names) for names in self._outputs]

    def need_indices(self) -> bool:
        """Whether the JaggedTensors of the result carry the ids."""
        return self._need_indices

    @overload
    def forward(self, ids: Tensor, offsets: Tensor) -> dict[str, Tensor]: ...
    @overload
    def forward(self, ids: KeyedJagged) -> dict[str, Jagged]: ...
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, ids: Tensor | KeyedJagged, offsets: Tensor | None = None
    ) -> dict[str, Tensor] | dict[str, Jagged]:
        """Look up one row per id, all of it on `device`.

        Args:
            ids: [n], int32 or int64: all ids of the first feature, then of the second, and so on;
                copied. Or a KeyedJaggedTensor alone: its keys may be in any order and more than the features.
                One batch size for all keys.
            offsets: [features * batch + 1], int32 or int64: where each bag begins, ascending from
                0 to n; or, with a batch of 1, [features + 1]. A GPU is waited for: the result's shapes are in
                them.

        Returns:
            By feature (`feature@table` for a feature of several tables) [ids of the feature, embedding_dim],
            float32 whatever the tables hold, float64 if they hold that; views of one new tensor. For a
            KeyedJaggedTensor JaggedTensors of them, with the lengths of the bags.

        Raises:
            IndexError: an id out of range; names id, position and table. Nothing is counted or written. On a
                GPU it is raised by the next call.
            TypeError: a wrong dtype.
            ValueError: offsets that don't fit, a wrong shape or device, a key that is missing, a batch size
                that varies by key.
        """
        if isinstance(ids, Tensor) or not is_keyed_jagged(ids):
            return self._rows(ids, offsets)
        if offsets is not None:
            raise TypeError("offsets: a KeyedJaggedTensor has its own, expected None")
        bags = bags_of(ids, self._features, weighted=False)
        rows = self._rows(bags.ids, bags.offsets)
        lengths = bags.offsets.diff().view(len(self._keys), -1)
        sizes = [values.shape[0] for values in rows.values()]
        indices = bags.ids.split_with_sizes(sizes) if self._need_indices else [None] * len(sizes)
        return {
            key: jagged_tensor(values, lengths[feature], indices[feature])
            for feature, (key, values) in enumerate(rows.items())
        }

    def _rows(self, ids: Any, offsets: Any) -> dict[str, Tensor]:
        device = self._input_device(ids)
        check_ids("ids", ids, device)
        check_ids("offsets", offsets, device)
        if ids.ndim != 1 or offsets.ndim != 1:
            raise ValueError(
                f"ids, offsets: expected 1-D tensors, got shapes {tuple(ids.shape)}, {tuple(offsets.shape)}"
            )
        features = len(self._keys)
        batch, rest = divmod(offsets.shape[0] - 1, features)
        if rest or batch < 0:
            raise ValueError(
                f"offsets: expected features * batch + 1 elements with {features} features, "
                f"got {offsets.shape[0]}"
            )
        check_offsets(offsets, ids.shape[0])
        begins = offsets[::batch].contiguous() if batch else offsets.new_zeros(features + 1)
        rows = look_up(self, Request(ids.contiguous(), begins, ids.shape[0]), None, sparse=self.sparse)
        return dict(zip(self._keys, rows.split_with_sizes(begins.diff().tolist()), strict=True))
