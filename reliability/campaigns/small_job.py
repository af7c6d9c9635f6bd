"""A job of two small tables whose rows are known at each step: what campaigns save and look for again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpr_native.store import (
    CollectionSchema,
    CommitInfo,
    Placement,
    RestorePlan,
    RestorePoint,
    SegmentPart,
    StoredRows,
    StoreWriter,
    TableSchema,
)

SCHEMA = CollectionSchema(
    tables=(
        TableSchema(name="user", rows=6, dim=2, init_min=-0.5, init_max=0.5),
        TableSchema(name="item", rows=3, dim=1, init_min=0.0, init_max=1.0),
    ),
    optimizer="row_wise_adagrad",
    seed=3,
)
PLACEMENT = Placement.contiguous(SCHEMA, 2)
SHARDS = range(PLACEMENT.shards)

# Weight and state of every row of a table, one array [rows, dim + 1].
Rows = dict[str, NDArray[np.float32]]


def initial_rows() -> Rows:
    return {table.name: np.full((table.rows, table.dim + 1), -1.0, np.float32) for table in SCHEMA.tables}


def of_shard(rows: Rows, shard: int) -> bytes:
    """The bytes of the rows of one shard."""
    ranges = {name: PLACEMENT.row_range(SCHEMA, name, shard) for name in rows}
    return b"".join(rows[name][begin:end].tobytes() for name, (begin, end) in ranges.items())


def all_bytes(rows: Rows) -> bytes:
    return b"".join(of_shard(rows, shard) for shard in SHARDS)


@dataclass
class Sink:
    """Where a restore writes to."""

    rows: Rows = field(default_factory=initial_rows)

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            assert found.state is not None
            self.rows[each.table][found.rows] = np.column_stack([found.weight, found.state])


def loaded(plan: RestorePlan) -> Rows:
    """The rows that a plan gives."""
    sink = Sink()
    plan.apply(sink)
    return sink.rows


def exact_state(point: RestorePoint) -> bytes:
    """Rows and dense state of a point."""
    return all_bytes(loaded(point.plan())) + np.asarray(point.dense()["mlp"]).tobytes()


@dataclass
class SmallJob:
    """Trains: every step changes the rows of a pattern and makes them dirty.

    `saved`: the rows that running restores give, which priority saves change too.
    """

    step: int = 0
    rows: Rows = field(default_factory=initial_rows)
    dirty: dict[str, set[int]] = field(default_factory=lambda: {table.name: set() for table in SCHEMA.tables})
    saved: Rows = field(default_factory=initial_rows)

    def train(self) -> None:
        self.step += 1
        for number, (name, values) in enumerate(self.rows.items()):
            for row in range(len(values)):
                if (row * 5 + self.step * 3 + number) % 7 < 3:
                    values[row] = self.step + row / 16
                    self.dirty[name].add(row)

    def chosen(self, kind: str) -> dict[str, list[int]]:
        """The rows that a save of `kind` holds."""
        if kind == "base":
            return {name: list(range(len(values))) for name, values in self.rows.items()}
        dirty = {name: sorted(rows) for name, rows in self.dirty.items()}
        return dirty if kind == "delta" else {name: rows[::2] for name, rows in dirty.items()}

    def after(self, kind: str) -> tuple[bytes, tuple[bytes, ...]]:
        """What exact and, of each shard, running restores give once a save of `kind` is committed."""
        running = {name: values.copy() for name, values in self.saved.items()}
        for name, rows in self.chosen(kind).items():
            running[name][rows] = self.rows[name][rows]
        dense = np.full(2, self.step, np.float32).tobytes()
        return all_bytes(self.rows) + dense, tuple(of_shard(running, shard) for shard in SHARDS)

    def parts(self, kind: str) -> list[SegmentPart]:
        found = []
        for name, rows in self.chosen(kind).items():
            for shard in SHARDS:
                begin, end = PLACEMENT.row_range(SCHEMA, name, shard)
                ids = np.array([row for row in rows if begin <= row < end], np.int64)
                if len(ids):
                    values = self.rows[name][ids]
                    found.append(
                        SegmentPart(
                            shard=shard, table=name, rows=ids, weight=np.ascontiguousarray(values[:, :-1]),
                            state=np.ascontiguousarray(values[:, -1]), count=ids.astype(np.uint32),
                        )
                    )  # fmt: skip
        return found

    def save(self, writer: StoreWriter, kind: str) -> CommitInfo:
        """Commits the rows as they are; raises OSError with everything still dirty."""
        with writer.begin(kind, step=self.step, samples=self.step) as save:
            for part in self.parts(kind):
                save.add(part)
            info = save.commit({"mlp": np.full(2, self.step, np.float32)})
        for name, rows in self.chosen(kind).items():
            self.saved[name][rows] = self.rows[name][rows]
        if kind != "priority":
            self.dirty = {name: set() for name in self.dirty}
        return info

    def load(self, point: RestorePoint) -> None:
        """Goes back to an exact point."""
        self.step = point.step
        self.rows = loaded(point.plan())
        self.saved = {name: values.copy() for name, values in self.rows.items()}
        self.dirty = {name: set() for name in self.dirty}
