"""`ShardedEmbeddingBagCollection`: the tables of a model in the shards of a cluster."""

from __future__ import annotations

import math
from typing import Any, NoReturn, overload

import numpy as np
import torch
from torch import Tensor, nn

from cpr_native._native import Router, TableSpec
from cpr_native._tensor import describe
from cpr_native.cluster.client import ShardClients
from cpr_native.cluster.messages import RowIds
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.config import EmbeddingBagConfig, PoolingType
from cpr_native.modules._autograd import record
from cpr_native.modules._inputs import check_ids, check_per_sample_weights
from cpr_native.modules._jagged import Keyed, KeyedJagged, bags_of, is_keyed_jagged, keyed_tensor
from cpr_native.modules._tables import output_names
from cpr_native.sharded._call import Call, Flight, pool
from cpr_native.sharded.optimizer import ShardedFusedOptimizer


class ShardedEmbeddingBagCollection(nn.Module):
    """`EmbeddingBagCollection` with its rows in other processes: the same forward, the same output.

    A training forward looks up the unique rows of a batch in the shards that hold them; its backward sends
    each of them the summed gradients of its rows, and the shards' optimizer steps once a row and step. It has
    no parameters: rows and their state are the shards', which save and restore them. With one trainer and
    staleness 0, rows, optimizer state, access counts and dirty bits are those of the local collection, bit
    for bit; with several, a row's gradient is the sum of the ranks' sums, in the order of ranks.

    Every trainer sends every step: one without a batch calls `empty_step`. Under `torch.distributed` nothing
    is reduced among trainers; each has a rank of its own in `clients`.

    - The ids are copied in forward; the caller may overwrite them.
    - `prefetch` sends the next batch's lookups ahead, while this batch is still trained.
    - A second backward through one lookup raises, so does `create_graph=True`.
    - A batch whose gradient holds inf or NaN is sent without rows and counted in `skipped_steps`; for the
      shards' optimizer it is a step.
    - Under `eval()` or `no_grad` rows are looked up only. Such a lookup too waits for the steps before.
    - Keep the module out of activation checkpointing.

    Args:
        spec: tables (`EmbeddingBagConfig`), optimizer and placement of the run.
        clients: this trainer's side of the protocol.
        is_weighted: of a KeyedJaggedTensor, as of `EmbeddingBagCollection`.
        mean_over_ranks: gradients are divided by the number of ranks, as DDP divides those of the dense
            layers: right for a loss that is the mean over a rank's batch. False: they are added up.

    Raises:
        TypeError: tables without pooling.
        ValueError: `clients` of another number of shards or ranks.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        clients: ShardClients,
        *,
        is_weighted: bool | None = None,
        mean_over_ranks: bool = True,
    ) -> None:
        super().__init__()
        tables = [table for table in spec.tables if isinstance(table, EmbeddingBagConfig)]
        if len(tables) < len(spec.tables):
            raise TypeError("spec: expected tables with pooling (EmbeddingBagConfig), got others too")
        if clients.shards != spec.shards:
            raise ValueError(f"clients: expected {spec.shards} shards, got {clients.shards}")
        self._tables = tables
        self._clients = clients
        self._features = [feature for table in tables for feature in table.feature_names]
        self._keys = [name for names in output_names(tables) for name in names]
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self._only_sums = all(table.pooling is PoolingType.SUM for table in tables)
        self._is_weighted = is_weighted
        self._mean_over_ranks = mean_over_ranks
        self._grad_scale = 1.0
        self._skipped_steps = 0
        self._router = _router_of(spec, tables)
        self._optimizer = ShardedFusedOptimizer(spec.optimizer, clients.set_scalars)
        self._ahead: Flight | None = None
        self._trained = 0  # the step of the last training forward
        # Asks autograd for a backward although there are no parameters; never gets a gradient itself.
        with torch.inference_mode(False):
            self._hook = torch.zeros((), device="cpu", requires_grad=True)

    @property
    def clients(self) -> ShardClients:
        """This trainer's side of the protocol."""
        return self._clients

    @property
    def feature_names(self) -> list[str]:
        """The features in the order of the ids and of the output, table by table."""
        return list(self._features)

    @property
    def output_dim(self) -> int:
        """Columns of the output: the sum of the features' dims."""
        return self._router.output_dim

    @property
    def fused_optimizer(self) -> ShardedFusedOptimizer:
        """The shards' optimizer, for schedulers."""
        return self._optimizer

    @property
    def learning_rate(self) -> float:
        """Of the shards' optimizer, from the next backward on; finite and at least 0."""
        return self._optimizer.settings.lr

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        try:
            self._optimizer.assign(lr=float(value))
        except ValueError as error:
            raise ValueError(f"learning_rate: {error}") from None

    @property
    def grad_scale(self) -> float:
        """What the incoming gradient is multiplied by before it is sent; finite and above 0."""
        return self._grad_scale

    @grad_scale.setter
    def grad_scale(self, value: float) -> None:
        if not (math.isfinite(value) and value > 0.0):
            raise ValueError(f"grad_scale: expected a finite number > 0, got {value}")
        self._grad_scale = float(value)

    @property
    def skipped_steps(self) -> int:
        """Batches of this trainer whose gradient held inf or NaN."""
        return self._skipped_steps

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables' settings, in the order of the output."""
        return list(self._tables)

    def is_weighted(self) -> bool:
        """Whether weights of a KeyedJaggedTensor are used."""
        return self._is_weighted is not False

    @overload
    def forward(self, ids: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor: ...
    @overload
    def forward(self, ids: KeyedJagged) -> Keyed: ...
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        ids: Tensor | KeyedJagged,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor | Keyed:
        """Look up and pool every feature of a batch: arguments, output and errors of the local collection.

        If `prefetch` was given the same batch, its rows are on their way already. Raises also what
        `ShardClients` says.
        """
        if not isinstance(ids, Tensor) and is_keyed_jagged(ids):
            if offsets is not None or per_sample_weights is not None:
                raise TypeError("offsets, per_sample_weights: a KeyedJaggedTensor has its own, expected None")
            weighted = self._is_weighted
            if weighted is None:
                weighted = ids.weights_or_none() is not None
            bags = bags_of(ids, self._features, weighted=weighted)
            pooled = self._pooled(bags.ids, bags.offsets, bags.weights)
            return keyed_tensor(list(self._keys), list(self._dims), pooled)
        return self._pooled(ids, offsets, per_sample_weights)

    def prefetch(self, ids: Tensor | KeyedJagged, offsets: Tensor | None = None) -> None:
        """Send the lookups of the next batch to be trained; returns without waiting.

        To be called after the forward of the present batch, before or after its backward, or before the first
        one. The next training forward takes the rows if its ids and offsets are equal; what was sent ahead
        for another batch is dropped. Nothing is counted. Raises as `forward` for what is wrong with the
        batch.
        """
        if not isinstance(ids, Tensor) and is_keyed_jagged(ids):
            bags = bags_of(ids, self._features, weighted=False)
            ids, offsets = bags.ids, bags.offsets
        self._check(ids, offsets)
        step = self._clients.step
        self._ahead = self._asked(ids, offsets, step + 1 if self._trained == step else step)

    def empty_step(self) -> None:
        """Send this trainer's part of a step for which it has no batch."""
        rows = [RowIds(np.zeros(len(self._tables), np.int64), np.zeros(0, np.int32))] * self._clients.shards
        self._optimizer.push()
        self._clients.update(
            rows, [np.zeros(0, np.float32)] * len(rows), [np.zeros(0, np.uint32)] * len(rows)
        )
        self._optimizer.updated()

    def _check(self, ids: Any, offsets: Any) -> None:
        check_ids("ids", ids)
        check_ids("offsets", offsets)
        if ids.ndim != 1 or offsets.ndim != 1:
            raise ValueError(
                f"ids, offsets: expected 1-D tensors, got shapes {tuple(ids.shape)}, {tuple(offsets.shape)}"
            )

    def _asked(self, ids: Any, offsets: Any, step: int) -> Flight:
        batch = self._router.route(
            describe(ids.contiguous()), describe(offsets.contiguous()), threads=torch.get_num_threads()
        )
        return Flight(self._clients, batch, step)

    def _flight(self, ids: Tensor, offsets: Tensor) -> Flight:
        """The rows of a batch that are on their way already, or are asked for now."""
        ahead, step = self._ahead, self._clients.step
        if (
            ahead is not None
            and (ahead.step, ahead.generation) == (step, self._clients.generation)
            and ahead.batch.matches(describe(ids.contiguous()), describe(offsets.contiguous()))
        ):
            self._ahead = None
            return ahead
        return self._asked(ids, offsets, step)

    def _pooled(self, ids: Any, offsets: Any, per_sample_weights: Tensor | None) -> Tensor:
        self._check(ids, offsets)
        if per_sample_weights is not None:
            pooling = "sum" if self._only_sums else "mean or max"
            check_per_sample_weights(per_sample_weights, ids, pooling=pooling, dtype=torch.float32)
            per_sample_weights = per_sample_weights.contiguous()
        trains = self.training and torch.is_grad_enabled()
        samples = per_sample_weights is not None and per_sample_weights.requires_grad
        if trains:
            flight = self._flight(ids, offsets)
            self._ahead = None
            self._trained = self._clients.step
        else:
            flight = self._asked(ids, offsets, self._clients.step)
        if trains or (samples and torch.is_grad_enabled()):
            call = Call(self, flight)
            return record(call, call.pool, self._hook if trains else None, per_sample_weights)
        return pool(flight, per_sample_weights, self.output_dim)

    def _send(self, flight: Flight, grad: Tensor) -> None:
        """Send a batch's gradients as those of the next step."""
        clients = self._clients
        if flight.generation != clients.generation:
            raise RuntimeError(
                f"the shards were brought to another step since this forward: it was of generation "
                f"{flight.generation}, now is {clients.generation}"
            )
        scale = self._grad_scale / clients.ranks if self._mean_over_ranks else self._grad_scale
        gradients = flight.batch.gradient(describe(grad), threads=torch.get_num_threads(), grad_scale=scale)
        if gradients is None:
            self._skipped_steps += 1
            self.empty_step()
            return
        self._optimizer.push()
        clients.update(flight.rows, gradients, flight.multiplicities())
        self._optimizer.updated()

    def __getstate__(self) -> NoReturn:
        raise TypeError("a copy would send the steps of its trainer twice: make another one of the spec")

    def __copy__(self) -> NoReturn:
        self.__getstate__()


def _router_of(spec: ClusterSpec, tables: list[EmbeddingBagConfig]) -> Router:
    return Router(
        [
            TableSpec(
                name=table.name,
                num_embeddings=table.num_embeddings,
                embedding_dim=table.embedding_dim,
                pooling=table.pooling.value.lower(),
                init_min=table.init_range[0],
                init_max=table.init_range[1],
                dtype=table.data_type.dtype,
            )
            for table in tables
        ],
        [number for number, table in enumerate(tables) for _ in table.feature_names],
        [[spec.row_range(table.name, shard) for shard in range(spec.shards)] for table in tables],
    )
