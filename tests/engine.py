"""Native collections without torch, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Batch, Collection, Selection, Snapshot, TableSpec
from cpr_native._tensor import describe


@dataclass(kw_only=True)
class Engine:
    """A collection of tables `t0`, `t1`, ... with one feature each and the calls that tests need."""

    rows: Sequence[int]
    dim: int = 8
    optimizer: str = "row_wise_adagrad"
    learning_rate: float = 0.1
    seed: int = 3
    threads: int = 2
    max_staging_bytes: int = 1 << 26
    pooling: str = "sum"
    spec: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = [
            TableSpec(
                name=f"t{t}",
                num_embeddings=n,
                embedding_dim=self.dim,
                pooling=self.pooling,
                **{"init_min": -0.5, "init_max": 0.5, **self.spec},
            )
            for t, n in enumerate(self.rows)
        ]
        self.native = Collection(
            tables,
            list(range(len(tables))),
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            seed=self.seed,
            max_staging_bytes=self.max_staging_bytes,
            **self.settings,
        )

    def lookup(
        self, ids: NDArray[Any], offsets: NDArray[Any], weights: NDArray[Any] | None = None
    ) -> tuple[NDArray[Any], Batch]:
        """Look up with `keep`: the output [batch, dims] (float64 for float64 tables) and the batch."""
        batch = (len(offsets) - 1) // len(self.rows)
        dtype = np.float64 if self.spec.get("dtype") == "float64" else np.float32
        out = np.full((batch, self.native.output_dim), np.nan, dtype=dtype)
        per_sample = None if weights is None else describe(weights)
        kept = self.native.lookup(
            describe(ids), describe(offsets), per_sample, describe(out), threads=self.threads, keep=True
        )
        assert kept is not None
        return out, kept

    def step(self, ids: NDArray[Any], offsets: NDArray[Any], grad: NDArray[np.float32]) -> bool:
        """One forward and backward."""
        _, batch = self.lookup(ids, offsets)
        return self.native.update(batch, describe(grad), threads=self.threads)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the native collection with arrays for memory, held during the call."""
        given = [describe(a) if isinstance(a, np.ndarray) else a for a in arguments]
        return getattr(self.native, name)(*given, **options)

    def random_step(self, rng: np.random.Generator, bags: int, *, skew: float = 3.0) -> None:
        """One step of `bags` one-id bags a table with skewed ids and normal gradients."""
        ids = np.concatenate([(n * rng.random(bags) ** skew).astype(np.int64) for n in self.rows])
        grad = rng.standard_normal((bags, self.native.output_dim)).astype(np.float32)
        assert self.step(ids, np.arange(len(ids) + 1), grad)

    def begin(self, *selections: Selection, clears_dirty: bool, **options: Any) -> Snapshot:
        """A snapshot of all tables."""
        return self.native.begin(selections, clears_dirty=clears_dirty, **options)

    def rows_of(
        self, table: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None, NDArray[np.uint32]]:
        """Copies of weight, state and trackers."""
        return (
            self.native.weight(table).copy(),
            self.native.state(table),
            self.native.trackers(table),
        )


@dataclass
class Taken:
    """What a snapshot took of one table, sorted by row."""

    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    state: NDArray[np.float32]
    count: NDArray[np.uint32]


def drain(snapshot: Snapshot, tables: int) -> list[Taken]:
    """Read every chunk; copies."""
    parts: list[list[Any]] = [[] for _ in range(tables)]
    for chunk in snapshot:
        state = chunk.state if chunk.state is not None else np.zeros(len(chunk.rows), np.float32)
        parts[chunk.table].append((chunk.rows.copy(), chunk.weight.copy(), state.copy(), chunk.count.copy()))
        chunk.close()
    result = []
    for pieces in parts:
        if not pieces:
            result.append(Taken(np.zeros(0, np.int64), *(np.zeros(0) for _ in range(3))))  # type: ignore[arg-type]
            continue
        rows, weight, state, count = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(rows, kind="stable")
        result.append(Taken(rows[order], weight[order], state[order], count[order]))
    return result


def trained(rows: tuple[int, ...] = (500, 40), steps: int = 5, **options: object) -> Engine:
    """Return an engine of `rows` after some random steps."""
    engine = Engine(rows=rows, **options)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for _ in range(steps):
        engine.random_step(rng, 64)
    return engine
