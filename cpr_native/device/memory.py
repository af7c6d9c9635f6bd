"""The device memory of one engine: tables, records and staging, allocated by torch and bound by address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._tensor import describe
from cpr_native.device.place import Place, describe_on
from cpr_native.device.rows import COUNT_MASK

if TYPE_CHECKING:
    from cpr_native._native import DeviceCollection, TableSpec, TensorRef


# A record on its way to the host: at most so many bytes beside the row and its state; a piece takes at least
# so many rows; and the smallest part of the staging memory is one of so many.
_RECORD_HEAD = 64
_LEAST_ROWS = 32
_STAGING_SHARES = 8


@dataclass(kw_only=True)
class TableMemory:
    """What a table lies in. `weight`: [num_embeddings, embedding_dim] of its dtype; the rest are bytes.

    `rest`: optimizer state, metadata, slots of the sampled list and claims on them.
    """

    weight: Tensor
    rest: list[Tensor]


def empty_rows(spec: TableSpec, place: Place, *, host_memory: bool) -> Tensor:
    """Allocate the rows of a table, not initialised; see `EngineMemory` for `host_memory`."""
    shape = (spec.num_embeddings, spec.embedding_dim)
    dtype = getattr(torch, spec.dtype)
    with torch.inference_mode(False):
        if host_memory:
            nbytes = spec.num_embeddings * spec.embedding_dim * dtype.itemsize
            return place.empty_host(nbytes).view(dtype).reshape(shape)
        return torch.empty(shape, dtype=dtype, device=place.torch_device)


def _most_staging(native: DeviceCollection) -> int:
    """Return the staging memory, in bytes, beyond which a snapshot of the tables gains nothing."""
    total = 0
    for table, spec in enumerate(native.tables):
        record = _RECORD_HEAD + 8 * spec.embedding_dim + 4 * native.state_columns(table)
        total += record * max(spec.num_embeddings, _LEAST_ROWS)
    return _STAGING_SHARES * total


class EngineMemory:
    """Allocates what a native collection needs and binds it; lives as long as that, which never leads back.

    `weights`: the rows of each table, to be used as they are; None: they get their initial values.
    `host_memory`: rows and optimizer state lie in pinned memory of the host, which the device reads and
    writes where it lies; otherwise all of it is memory of the device.
    """

    def __init__(
        self,
        native: DeviceCollection,
        place: Place,
        *,
        weights: Sequence[Tensor] | None,
        host_memory: bool,
        max_staging_bytes: int,
        stream: int,
    ) -> None:
        self._place = place
        self._host_memory = host_memory
        self.tables: list[TableMemory] = []
        self._metadata: list[Tensor] = []
        self._needs = [native.needs(table) for table in range(len(native.tables))]
        # What the native collection keeps alive: one list a table, whose first is the weight.
        self._owners: list[list[Any]] = []
        max_staging_bytes = min(max_staging_bytes, _most_staging(native))
        staging_bytes = native.snapshot_bytes(max_staging_bytes)  # refuses too few before all else
        for table, spec in enumerate(native.tables):
            given = None if weights is None else weights[table].detach()
            weight = empty_rows(spec, place, host_memory=host_memory) if given is None else given
            self._bind(native, table, weight)
        self._records = place.empty(native.record_bytes)
        native.bind_records(describe_on(place, self._records), self._records, stream)
        native.initialise(stream, weights=weights is None)
        self._staging = place.empty(staging_bytes)
        native.bind_snapshot(describe_on(place, self._staging), max_staging_bytes, self._staging, stream)

    def _bind(self, native: DeviceCollection, table: int, weight: Tensor) -> None:
        place, needs = self._place, self._needs[table]
        empty = place.empty_host if self._host_memory else place.empty
        arrays = [empty(size) for size in needs["arrays"]]
        others = [place.empty(needs[name]) for name in ("metadata", "slots", "claims")]
        owner = [weight, *arrays, *others]
        native.bind(
            table,
            self.describe_weight(weight),
            [self._describe(array) for array in arrays],
            describe_on(place, others[0]),
            describe_on(place, others[1]),
            describe_on(place, others[2]),
            owner,
        )
        self._owners.append(owner)
        self._metadata.append(others[0])
        self.tables.append(TableMemory(weight=weight, rest=[*arrays, *others]))

    def describe_weight(self, weight: Tensor) -> TensorRef:
        """Return the memory of rows: pinned memory of the host counts as the device's.

        Raises ValueError: on another device, or not contiguous.
        """
        return self._describe(weight)

    def _describe(self, tensor: Tensor) -> TensorRef:
        on_gpu = self._place.torch_device.type == "cuda"
        if on_gpu and tensor.device.type == "cpu" and tensor.is_pinned():
            return describe(tensor)
        return describe_on(self._place, tensor)

    def replace_weight(self, table: int, weight: Tensor) -> None:
        """Let go of the old rows of a table, after the native collection was given `weight`."""
        self.tables[table].weight = weight
        self._owners[table][0] = None

    def sums_of_counts(self, table: int, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Return the sum of the rows' counts in each of [bounds[i], bounds[i + 1])."""
        rows = self.tables[table].weight.shape[0]
        cells = self._metadata[table].view(torch.int32).reshape(rows, -1)[:, 1]
        sums = [(cells[begin:end] & COUNT_MASK).sum(dtype=torch.int64) for begin, end in pairwise(bounds)]
        return np.asarray(torch.stack(sums).cpu().numpy())

    def device_tensors(self) -> list[Tensor]:
        """Return all of it that is memory of the device."""
        tables = [tensor for table in self.tables for tensor in (table.weight, *table.rest)]
        return [x for x in (*tables, self._records, self._staging) if x.device == self._place.torch_device]

    def sizes(self) -> dict[str, int]:
        """Return bytes: `weight`, `state`, `metadata`, `ssu` (slots and claims), `staging` (all of it)."""

        def total(name: str) -> int:
            return sum(needs[name] for needs in self._needs)

        return {
            "weight": total("weight"),
            "state": sum(sum(needs["arrays"]) for needs in self._needs),
            "metadata": total("metadata"),
            "ssu": total("slots") + total("claims"),
            "staging": self._staging.numel(),
        }
