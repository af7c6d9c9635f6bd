"""One lookup over the shards and its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

    def check(self) -> None:
        """Raise RuntimeError after the update."""
        self.flight()

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

    def weight_grads(self, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """None: the weights are the shards'."""
        return []


def pool(flight: Flight, per_sample_weights: Tensor | None, output_dim: int) -> Tensor:
    """Wait for the rows and pool them: float32 [batch, output_dim]."""
    threads = torch.get_num_threads()
    flight.land(threads)
    out = torch.empty((flight.batch.batch_size, output_dim), dtype=torch.float32, device="cpu")
    weights = None if per_sample_weights is None else describe(per_sample_weights.detach())
    flight.batch.pool(weights, describe(out), threads=threads)
    return out
