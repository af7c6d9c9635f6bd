"""One lookup over the shards and its backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpr_native._native import RoutedBatch
from cpr_native._tensor import describe
from cpr_native.cluster.client import Lookups, ShardClients
from cpr_native.cluster.messages import RowIds

if TYPE_CHECKING:
    from cpr_native.sharded.collection import ShardedEmbeddingBagCollection


class Flight:
    """A batch whose rows were asked for: what each shard has of it, and the answers as they come."""

    def __init__(self, clients: ShardClients, batch: RoutedBatch, step: int) -> None:
        shards = range(clients.shards)
        self.batch = batch
        self.generation = clients.generation
        self.rows = [RowIds(batch.counts(shard), batch.rows(shard)) for shard in shards]
        self._lookups: Lookups | None = clients.lookup(self.rows, step=step)
        self.step = step

    def land(self, threads: int) -> None:
        """Wait for all rows and take them into the batch; does nothing the second time."""
        if self._lookups is None:
            return
        for shard in range(len(self.rows)):
            values = np.ascontiguousarray(self._lookups.result(shard))
            self.batch.fill(shard, describe(values), threads=threads)
        self._lookups = None

    def multiplicities(self) -> list[NDArray[np.uint32]]:
        """How many ids of the batch each row is, by shard."""
        return [self.batch.multiplicity(shard) for shard in range(len(self.rows))]


class Call:
    """One training forward over the shards; its backward sends the gradients, once."""

    def __init__(self, module: ShardedEmbeddingBagCollection, flight: Flight) -> None:
        self._module = module
        self._flight: Flight | None = flight

    def pool(self, per_sample_weights: Tensor | None) -> Tensor:
        """Return the pooled output, new memory."""
        return pool(self.flight(), per_sample_weights, self._module.output_dim)

    def flight(self) -> Flight:
        """The batch; raises RuntimeError after its update."""
        if self._flight is None:
            raise RuntimeError(
                "second backward through one lookup: its gradients have been sent to the shards already"
            )
        return self._flight

    def update(self, grad: Tensor) -> None:
        """Send the gradients of the batch's rows."""
        flight, self._flight = self.flight(), None
        self._module._send(flight, grad)

    def sample_grad(self, grad: Tensor) -> Tensor:
        """The gradient of the per-sample weights, [ids], with the rows of the forward."""
        batch = self.flight().batch
        out = torch.empty(batch.num_ids, dtype=torch.float32, device="cpu")
        batch.per_sample_weight_grad(describe(grad), describe(out), threads=torch.get_num_threads())
        return out


def pool(flight: Flight, per_sample_weights: Tensor | None, output_dim: int) -> Tensor:
    """Wait for the rows and pool them: float32 [batch, output_dim]."""
    threads = torch.get_num_threads()
    flight.land(threads)
    out = torch.empty((flight.batch.batch_size, output_dim), dtype=torch.float32, device="cpu")
    weights = None if per_sample_weights is None else describe(per_sample_weights.detach())
    flight.batch.pool(weights, describe(out), threads=threads)
    return out


def look_up(call: Call, hook: Tensor | None, per_sample_weights: Tensor | None) -> Tensor:
    """Pool, and have autograd come back: for an update if there is a `hook`, for the weights' gradient."""
    return cast(Tensor, _Lookup.apply(call, hook, per_sample_weights))  # type: ignore[no-untyped-call]


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, hook: Tensor | None, per_sample_weights: Tensor | None) -> Tensor:
        out = call.pool(per_sample_weights)
        ctx.call = call
        # A saved tensor gives torch's own error for a second backward without retain_graph.
        ctx.save_for_backward(out.new_empty(0))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.needs_input_grad[1] and torch.is_grad_enabled():
            raise RuntimeError(
                "a fused optimizer step has no second derivative: backward with create_graph=True"
            )
        return _gradients(ctx, grad)


@once_differentiable
def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    call: Call = ctx.call
    _ = ctx.saved_tensors
    call.flight()
    grad = grad.contiguous()
    sample_grad = call.sample_grad(grad) if ctx.needs_input_grad[2] else None
    if ctx.needs_input_grad[1]:
        call.update(grad)
    return None, None, sample_grad
