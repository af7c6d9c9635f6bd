"""The yardstick of the cluster: embedding shards as they are commonly written around an actor system.

Each shard holds NumPy arrays and gathers what it is asked for; a trainer sends every id of the batch to the
shard that has its row, puts the answers together, and sends every gradient back. Nothing is deduplicated,
routed in native code, or sent ahead; there is no tracking, and nothing survives a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = list[NDArray[np.int64]]
Rows = list[NDArray[np.float32]]


class Answer(Protocol):
    """A call on its way."""

    def result(self, timeout: float) -> Any: ...


Send = Callable[[int, str, tuple[Any, ...]], Answer]


class PlainShard:
    """One block of rows of every table under SGD; it runs in a process of its own."""

    def __init__(self, rows: int, tables: int, dim: int, lr: float) -> None:
        self._weights = [np.zeros((rows, dim), np.float32) for _ in range(tables)]
        self._lr = np.float32(lr)

    def load(self, table: int, rows: NDArray[np.float32]) -> None:
        """Replace all rows of a table."""
        self._weights[table][:] = rows

    def lookup(self, ids: Ids) -> Rows:
        """Return a row for every local id, by table."""
        return [weight[mine] for weight, mine in zip(self._weights, ids, strict=True)]

    def update(self, ids: Ids, gradients: Rows) -> None:
        """Do a step of SGD with a gradient for every local id."""
        for weight, mine, gradient in zip(self._weights, ids, gradients, strict=True):
            np.subtract.at(weight, mine, self._lr * gradient)

    def weight(self, table: int) -> NDArray[np.float32]:
        """Return all rows of a table."""
        return self._weights[table]


class PlainTrainer:
    """One trainer over `shards` PlainShards with `block` rows of each table, one feature a table."""

    def __init__(self, send: Send, *, shards: int, block: int, tables: int, dim: int, timeout: float) -> None:
        self._send = send
        self._shards = range(shards)
        self._block, self._tables, self._dim, self._timeout = block, tables, dim, timeout
        self.bytes_moved = 0

    def lookup(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the rows of `ids` ([tables * batch], feature-major, one a bag): [batch, tables * dim]."""
        columns = ids.reshape(self._tables, -1)
        self._masks = [[column // self._block == shard for column in columns] for shard in self._shards]
        self._ids = [
            [column[mask] - shard * self._block for column, mask in zip(columns, masks, strict=True)]
            for shard, masks in enumerate(self._masks)
        ]
        pending = [self._send(shard, "lookup", (self._ids[shard],)) for shard in self._shards]
        out = np.empty((columns.shape[1], self._tables, self._dim), np.float32)
        for shard, answer in enumerate(pending):
            rows: Rows = answer.result(self._timeout)
            for table, (mask, mine) in enumerate(zip(self._masks[shard], rows, strict=True)):
                out[mask, table] = mine
            self.bytes_moved += _bytes(self._ids[shard]) + _bytes(rows)
        return out.reshape(columns.shape[1], -1)

    def update(self, gradient: NDArray[np.float32]) -> None:
        """Send the gradient of what `lookup` returned; returns when it is applied."""
        parts = gradient.reshape(len(gradient), self._tables, self._dim)
        pending = []
        for shard, masks in enumerate(self._masks):
            mine = [parts[mask, table] for table, mask in enumerate(masks)]
            pending.append(self._send(shard, "update", (self._ids[shard], mine)))
            self.bytes_moved += _bytes(self._ids[shard]) + _bytes(mine)
        for answer in pending:
            answer.result(self._timeout)


def _bytes(arrays: Sequence[NDArray[Any]]) -> int:
    return sum(array.nbytes for array in arrays)
