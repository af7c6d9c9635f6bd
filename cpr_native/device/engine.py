"""`DeviceEngine`: what `Collection` is, over tables in memory of a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_native._native import DeviceCollection, SnapshotInProgress
from cpr_native.device.memory import EngineMemory
from cpr_native.device.order import StreamOrder
from cpr_native.device.outside import DeviceOutside
from cpr_native.device.place import Place, describe_on
from cpr_native.device.rows import DeviceRows
from cpr_native.device.settings import DeviceSettings

if TYPE_CHECKING:
    from cpr_native._native import DeviceBatch, Selection, Snapshot, TableSpec, TensorRef

_DEFAULT_STAGING_BYTES = 256 * 2**20


class DeviceEngine(DeviceSettings, DeviceRows, DeviceOutside):
    """Tables on a device, with the methods of `Collection`, their arguments and their errors.

    Differences: ids, offsets, per-sample weights, gradients and outputs are memory of the device, which their
    owner keeps until the work of the call has ended (torch's allocator does, within a stream). Calls give
    work to torch's current stream and return; one that returns a value waits for it. A bad id or offset is
    raised by the next call, or by `synchronize`; until then its bag's output is NaN and nothing is written.
    `threads` isn't used. One thread at a time; a snapshot is read by another.

    Args:
        tables, features, optimizer, learning_rate, eps, initial_state, beta1, beta2, weight_decay, seed: as
            `Collection` has them; no table is `external`, and all have fewer than 2^32 rows together.
        place: the device.
        max_staging_bytes: memory for rows on their way to the host, there and on the device, kept always; no
            more than the tables have use for.
        weights: the rows of each table, [num_embeddings, embedding_dim] of its dtype, to be used as they are
            (a table's rows are dirty then); None: allocated here, with initial values.
        host_memory: rows and optimizer state lie in pinned memory of the host, the rest on the device.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        features: Sequence[int],
        *,
        place: Place,
        optimizer: str,
        learning_rate: float,
        eps: float = 1e-8,
        initial_state: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        seed: int = 0,
        max_staging_bytes: int = _DEFAULT_STAGING_BYTES,
        weights: Sequence[Tensor] | None = None,
        host_memory: bool = False,
    ) -> None:
        if weights is not None and len(weights) != len(tables):
            raise ValueError(f"weights: expected one for each of {len(tables)} tables, got {len(weights)}")
        self._place = place
        self._snapshot: Snapshot | None = None  # begun last
        self._native = DeviceCollection(
            tables,
            features,
            device=place.native,
            optimizer=optimizer,
            learning_rate=learning_rate,
            eps=eps,
            initial_state=initial_state,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            seed=seed,
        )
        self._memory = EngineMemory(
            self._native,
            place,
            weights=weights,
            host_memory=host_memory,
            max_staging_bytes=max_staging_bytes,
            stream=place.stream(),
        )
        self._order = StreamOrder(place, self._memory.device_tensors)
        for table in range(len(tables)) if weights is not None else ():
            self.mark_dirty(table)

    @property
    def place(self) -> Place:
        """The device of the tables."""
        return self._place

    @property
    def tables(self) -> list[TableSpec]:
        """As `Collection.tables`."""
        return self._native.tables

    @property
    def output_dim(self) -> int:
        """As `Collection.output_dim`."""
        return self._native.output_dim

    @property
    def region(self) -> None:
        """None: shared memory is the host's."""
        return None

    def reattach(self) -> None:
        """Without effect: no earlier process left these tables."""

    def doubtful_rows(self, table: int) -> NDArray[np.int64]:
        """Return no rows."""
        return np.zeros(0, np.int64)

    def weight(self, table: int) -> Tensor:
        """Return the rows of a table, [num_embeddings, embedding_dim] of its dtype; aliased.

        On the device, with `host_memory` in pinned memory of the host. Announce writes with `mark_dirty`.
        """
        return self._memory.tables[table].weight

    def bind_weight(self, table: int, weight: TensorRef, owner: Tensor) -> None:
        """Use the caller's memory for a table's rows, as `Collection.bind_weight`; all of them become dirty.

        `owner`: the tensor that `weight` describes. Waits for the device, which may still use the old one.
        """
        self._native.bind_weight(table, weight, owner, self._order.stream())
        self._place.native.synchronize(self._order.stream())
        self._memory.replace_weight(table, owner)

    def lookup(
        self,
        ids: TensorRef,
        offsets: TensorRef | None,
        per_sample_weights: TensorRef | None,
        out: TensorRef | None,
        *,
        threads: int,
        keep: bool,
        ids_per_bag: int = 0,
    ) -> DeviceBatch | None:
        """As `Collection.lookup`, with everything on the device; nothing of it is copied to the host."""
        memory: Tensor | None = None
        if keep:
            num_ids = math.prod(ids[1])
            batch_size = num_ids if out is None else out[1][0]
            weighted = per_sample_weights is not None
            memory = self._place.empty(self._native.batch_bytes(num_ids, batch_size, weighted=weighted))
        return self._native.lookup(
            ids,
            offsets,
            per_sample_weights,
            out,
            None if memory is None else describe_on(self._place, memory),
            memory,
            stream=self._order.stream(),
            ids_per_bag=ids_per_bag,
        )

    def update(
        self,
        batch: DeviceBatch,
        grad: TensorRef,
        *,
        threads: int,
        grad_scale: float = 1.0,
        frozen: Sequence[int] = (),
        multiplicity: None = None,
    ) -> bool:
        """As `Collection.update`; True always: `skipped_steps` counts the steps that a gradient skipped."""
        if multiplicity is not None:
            raise ValueError("multiplicity: expected None, sums of several ids aren't for tables on a device")
        memory = self._place.empty(self._native.update_bytes(batch.num_ids))
        self._native.update(
            batch,
            grad,
            describe_on(self._place, memory),
            grad_scale=grad_scale,
            frozen=frozen,
            stream=self._order.stream(),
        )
        return True

    def gradient(
        self, batch: DeviceBatch, grad: TensorRef, *, table: int, threads: int
    ) -> tuple[Tensor, Tensor]:
        """As `Collection.gradient`: rows int64 [u] and values [u, dim] on the device; waits for it."""
        spec, device = self.tables[table], self._place.torch_device
        dtype = torch.float64 if spec.dtype == "float64" else torch.float32
        rows = torch.empty(batch.num_ids, dtype=torch.int64, device=device)
        values = torch.empty((batch.num_ids, spec.embedding_dim), dtype=dtype, device=device)
        count = torch.empty(1, dtype=torch.int64, device=device)
        memory = self._place.empty(self._native.gradient_bytes(batch.num_ids))
        self._native.gradient(
            batch,
            grad,
            table=table,
            rows=describe_on(self._place, rows),
            values=describe_on(self._place, values),
            count=describe_on(self._place, count),
            memory=describe_on(self._place, memory),
            stream=self._order.stream(),
        )
        unique = int(count)
        return rows[:unique], values[:unique]

    def per_sample_weight_grad(
        self, batch: DeviceBatch, grad: TensorRef, out: TensorRef, *, threads: int
    ) -> None:
        """As `Collection.per_sample_weight_grad`, before the batch's update."""
        self._native.per_sample_weight_grad(batch, grad, out, stream=self._order.stream())

    def begin(
        self,
        selections: Sequence[Selection],
        *,
        clears_dirty: bool,
        shard_rows: Sequence[int | tuple[int, int]] = (),
        blocking: bool = False,
        walk: bool = True,
    ) -> Snapshot:
        """As `Collection.begin`: the rows as they are when torch's current stream gets there."""
        self._snapshot = self._native.begin(
            selections,
            clears_dirty=clears_dirty,
            shard_rows=shard_rows,
            blocking=blocking,
            walk=walk,
            stream=self._order.stream(),
        )
        return self._snapshot

    def lookups(self, table: int, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Return the sums of the counts of rows [bounds[i], bounds[i + 1]) of a table, from 0 on.

        Waits for the device. Raises SnapshotInProgress while a snapshot is uncommitted: it holds counts too.
        """
        if self._snapshot is not None and self._snapshot.status not in ("committed", "aborted"):
            raise SnapshotInProgress("lookups: a snapshot is in flight; commit or abort it first")
        self._order.stream()  # torch's work is on the current one
        return self._memory.sums_of_counts(table, bounds)

    def prepare_step(self, num_ids: int) -> None:
        """Make room for what an update of `num_ids` ids may record; before each replay of a captured step.

        Raises StagingFull.
        """
        self._native.prepare_step(num_ids, self._order.stream())

    def on_stream(self) -> tuple[DeviceCollection, int]:
        """Return the native collection, for native code to write rows, and the stream for its work."""
        return self._native, self._order.stream()

    def synchronize(self) -> None:
        """Wait for the device, and raise what a lookup found (IndexError, ValueError)."""
        self._native.synchronize(self._order.stream())

    def memory(self) -> dict[str, int]:
        """As `Collection.memory`; `staging`: what is kept for rows on their way, on the device."""
        return {**self._memory.sizes(), "saved": self._native.saved_bytes}

    def close(self) -> None:
        """As `Collection.close`."""
        self._native.close()
