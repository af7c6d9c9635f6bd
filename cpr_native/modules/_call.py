"""One lookup from forward to backward, outside autograd: what eager and compiled modules both run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cpr_native.modules._inputs import check_offsets, check_rows
from cpr_native.modules._memory import torch_dtype

if TYPE_CHECKING:
    from cpr_native._native import Batch, DeviceBatch
    from cpr_native.modules._base import EngineModule


@dataclass(frozen=True)
class Request:
    """Contiguous ids of one lookup, on its module's device.

    `bags` rows of output, by offsets or by `ids_per_bag` ids each. Ids equal to `padding_idx` belong to no
    bag; None: every id counts.
    """

    ids: Tensor
    offsets: Tensor | None
    bags: int
    ids_per_bag: int = 0
    padding_idx: int | None = None


class Call:
    """One forward and what its backward needs.

    `frozen`: tables left out of the update; `sparse`: the layout of the gradients torch's optimizers get.
    """

    __slots__ = ("_after_update", "_batch", "_kept", "_read", "frozen", "module", "sparse")

    def __init__(self, module: EngineModule, frozen: Sequence[int], sparse: bool) -> None:
        self.module, self.frozen, self.sparse = module, frozen, sparse
        self._batch: Batch | DeviceBatch | None = None
        self._read: list[tuple[int, int]] | None = None
        self._kept: Tensor | None = None
        self._after_update: Callable[[], None] | None = None

    def forward(self, request: Request, per_sample_weights: Tensor | None, *, trains: bool) -> Tensor:
        """Pool the bags ([bags, output dim], the engine's dtype) and keep a copy of the ids for backward.

        `trains`: backward will update or give a gradient for the weights.
        """
        request, per_sample_weights, self._kept = without_padding(self.module, request, per_sample_weights)
        out, self._batch = _pool(self.module, request, per_sample_weights, keep=True)
        if per_sample_weights is not None:
            self._read = _read(self.module._weights())
        observer = self.module._observer
        if trains and observer is not None:
            self._after_update = observer(request, self.frozen)
        return out

    def update(self, grad: Tensor) -> None:
        """One step of the fused optimizer; the batch is used up, whether or not it was skipped."""
        module, batch = self.module, self.batch()
        check_rank_local(module)
        weights = module._synced()
        engine: Any = module._engine  # of the batch's kind
        updated = engine.update(
            batch,
            module._describe(grad),
            threads=torch.get_num_threads(),
            grad_scale=module._grad_scale,
            frozen=self.frozen,
        )
        self._batch = None
        if updated:
            module._written(weights, self.frozen)
            self.tracked()

    def weight_grads(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """The gradient of each table's weight, dense or sparse with one entry a row; tracks the rows."""
        gradient = self.sparse_gradient if self.sparse else self.dense_gradient
        grads = [gradient(grad, table) if needs else None for table, needs in enumerate(wanted)]
        if any(wanted):
            self.tracked()
        return grads

    def sparse_gradient(self, grad: Tensor, table: int) -> Tensor:
        """The gradient of a table's weight, sparse with one entry a row."""
        rows, values = self._gradient(grad, table)
        return torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, self._shape(table), is_coalesced=True, check_invariants=False
        )

    def dense_gradient(self, grad: Tensor, table: int) -> Tensor:
        """The gradient of a table's weight, dense."""
        rows, values = self._gradient(grad, table)
        dense = torch.zeros(self._shape(table), dtype=values.dtype, device=values.device)
        return dense.index_copy_(0, rows, values)

    def _gradient(self, grad: Tensor, table: int) -> tuple[Tensor, Tensor]:
        engine: Any = self.module._engine
        rows, values = engine.gradient(
            self.batch(), self.module._describe(grad), table=table, threads=torch.get_num_threads()
        )
        kind = torch_dtype(self.module._plan.tables[table].data_type)
        return torch.as_tensor(rows), torch.as_tensor(values).to(kind)

    def _shape(self, table: int) -> tuple[int, int]:
        config = self.module._plan.tables[table]
        return config.num_embeddings, config.embedding_dim

    def tracked(self) -> None:
        """Tell the observer that the rows were counted."""
        if self._after_update is not None:
            self._after_update()

    def sample_grad(self, grad: Tensor) -> Tensor:
        """The gradient of the per-sample weights, one per id of the request; 0 for padding.

        Raises RuntimeError when the rows aren't those of the forward any more, as torch.
        """
        if self._read != _read(self.module._synced()):
            raise RuntimeError(
                "the weights that the gradient of per_sample_weights needs have been modified by an inplace "
                "operation (a fused optimizer step, say) or replaced since their forward"
            )
        batch = self.batch()
        out = torch.empty(batch.num_ids, dtype=grad.dtype, device=grad.device)
        engine: Any = self.module._engine
        describe = self.module._describe
        engine.per_sample_weight_grad(batch, describe(grad), describe(out), threads=torch.get_num_threads())
        if self._kept is None:
            return out
        zeros = torch.zeros(self._kept.shape, dtype=grad.dtype, device=grad.device)
        return zeros.masked_scatter_(self._kept, out)

    def check(self) -> None:
        """Raise RuntimeError after the update."""
        self.batch()

    def batch(self) -> Batch | DeviceBatch:
        """The engine's copy of the ids; raises RuntimeError after the update."""
        if self._batch is None:
            raise RuntimeError(
                "second backward through one lookup: its fused optimizer step has been done already"
            )
        return self._batch


def _read(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), weight._version) for weight in weights]


def pool(module: EngineModule, request: Request, per_sample_weights: Tensor | None) -> Tensor:
    """Pool the request's bags, [bags, output dim], in the engine's dtype; nothing is kept."""
    request, per_sample_weights, _ = without_padding(module, request, per_sample_weights)
    return _pool(module, request, per_sample_weights, keep=False)[0]


def _pool(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None, *, keep: bool
) -> tuple[Tensor, Batch | DeviceBatch | None]:
    engine, describe = module._engine, module._describe
    out = torch.empty((request.bags, module._output_dim), dtype=module._compute_dtype, device=module._device)
    batch = engine.lookup(
        describe(request.ids),
        None if request.offsets is None else describe(request.offsets),
        None if per_sample_weights is None else describe(per_sample_weights.detach()),
        describe(out),
        threads=torch.get_num_threads(),
        keep=keep,
        ids_per_bag=request.ids_per_bag,
    )
    return out, batch


def without_padding(
    module: EngineModule, request: Request, per_sample_weights: Tensor | None
) -> tuple[Request, Tensor | None, Tensor | None]:
    """The same bags without the padding ids, and which ids were kept (bool [n]; None: all)."""
    padding_idx = request.padding_idx
    if padding_idx is None:
        return request, per_sample_weights, None
    ids, bounds = request.ids, request.offsets
    if bounds is None:
        bounds = even_offsets(request.bags, request.ids_per_bag, ids.device)
    check_offsets(bounds, ids.shape[0])
    check_rows(ids, module._plan.tables[0].num_embeddings)
    kept = ids.ne(padding_idx)
    before = torch.zeros(ids.shape[0] + 1, dtype=torch.int64, device=ids.device)
    torch.cumsum(kept, 0, out=before[1:])
    if per_sample_weights is not None:
        per_sample_weights = per_sample_weights[kept]
    return Request(ids[kept], before[bounds.long()], request.bags), per_sample_weights, kept


def renormalise(module: EngineModule, request: Request, max_norm: float, norm_type: float) -> None:
    """Scale the rows named by the ids down to `max_norm`, as torch; all of the request is checked before."""
    (weight,) = module._synced()
    if request.offsets is not None:
        check_offsets(request.offsets, request.ids.shape[0])
    if module._engine.renormalise(0, module._describe(request.ids), max_norm, norm_type):
        torch.autograd.graph.increment_version(weight)
        module._versions[0] = weight._version


def even_offsets(bags: int, ids_per_bag: int, device: torch.device) -> Tensor:
    """Where each of `bags` bags of `ids_per_bag` ids begins, and the end: int64 [bags + 1]."""
    return torch.arange(bags + 1, dtype=torch.int64, device=device) * ids_per_bag


def check_rank_local(module: EngineModule) -> None:
    """Raise RuntimeError when a fused table would be updated on one of several ranks alone, undeclared."""
    distributed = torch.distributed
    if module.rank_local or not (distributed.is_available() and distributed.is_initialized()):
        return
    if distributed.get_world_size() > 1:
        raise RuntimeError(
            "a fused optimizer updates the tables of this rank alone, and torch.distributed has "
            f"{distributed.get_world_size()} ranks: pass rank_local=True if the tables are meant to differ"
        )
