"""`DeviceOutside`: what changes or counts rows of tables on a device outside of updates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from cpr_native._tensor import describe
from cpr_native.device.place import Place, describe_on

if TYPE_CHECKING:
    from torch import Tensor

    from cpr_native._native import DeviceCollection, TensorRef
    from cpr_native.device.order import StreamOrder


class DeviceOutside:
    """The methods of `Collection` that take ids or a gradient on the device and aren't part of a step."""

    _native: DeviceCollection
    _order: StreamOrder
    _place: Place

    def mark_dirty_nonzero(self, table: int, grad: Tensor) -> int:
        """As `Collection.mark_dirty_nonzero`, of a gradient on the device; waits for it."""
        spec = self._native.tables[table]
        expected = (spec.num_embeddings, spec.embedding_dim)
        if tuple(grad.shape) != expected:
            raise ValueError(f"grad: expected shape {expected}, got {tuple(grad.shape)}")
        describe_on(self._place, grad)
        bits = grad.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[grad.element_size()])
        rows = bits.ne(0).any(dim=1).nonzero().reshape(-1).cpu() + spec.row_offset
        self._native.mark_dirty(table, describe(rows), self._order.stream())
        return int(rows.numel())

    def track(self, table: int, ids: TensorRef) -> None:
        """As `Collection.track`, of ids on the device; a bad id is raised by the next call."""
        memory = self._workspace(ids)
        self._native.track(table, ids, memory=describe_on(self._place, memory), stream=self._order.stream())

    def renormalise(self, table: int, ids: TensorRef, max_norm: float, norm_type: float) -> int:
        """As `Collection.renormalise`, of ids on the device, for the norms 1, 2 and inf; waits for it.

        Raises ValueError for another norm.
        """
        count = torch.empty(1, dtype=torch.int64, device=self._place.torch_device)
        memory = self._workspace(ids)
        self._native.renormalise(
            table,
            ids,
            max_norm,
            norm_type,
            count=describe_on(self._place, count),
            memory=describe_on(self._place, memory),
            stream=self._order.stream(),
        )
        self._native.synchronize(self._order.stream())
        return int(count)

    def _workspace(self, ids: TensorRef) -> Tensor:
        return self._place.empty(self._native.ids_bytes(math.prod(ids[1])))
