"""A small model with rows in NumPy, its saves, and a sink: what the tests of the store share."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    CommitInfo,
    Placement,
    SegmentPart,
    StoredRows,
    StoreWriter,
    TableRows,
    TableSchema,
)
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.stored import stored_rows

SCHEMA = CollectionSchema(
    tables=(
        TableSchema(name="user", rows=20, dim=4, init_min=-0.5, init_max=0.5),
        TableSchema(name="item.id", rows=7, dim=2, init_min=0.0, init_max=1.0),
        TableSchema(name="tiny", rows=2, dim=3, init_min=0.0, init_max=1.0),
    ),
    optimizer="row_wise_adagrad",
    seed=7,
)
PLACEMENT = Placement.contiguous(SCHEMA, 3)  # the third shard holds no row of "tiny"


class Model:
    """Rows that training changes and saves; also what a restore writes to."""

    def __init__(
        self, seed: int = 0, schema: CollectionSchema = SCHEMA, placement: Placement = PLACEMENT
    ) -> None:
        self.schema, self.placement = schema, placement
        self.random = np.random.default_rng(seed)
        self.weight = {t.name: self.random.random((t.rows, t.dim), np.float32) for t in schema.tables}
        self.state = {t.name: self.random.random(t.rows, np.float32) for t in schema.tables}
        self.dirty: dict[str, set[int]] = {t.name: set() for t in schema.tables}
        self.step = 0
        self.calls: list[tuple[str, int, bool]] = []
        self.closed = 0

    def train(self, rows: dict[str, Iterable[int]]) -> None:
        self.step += 1
        for table, ids in rows.items():
            for row in ids:
                self.weight[table][row] = self.random.random(self.weight[table].shape[1], np.float32)
                self.state[table][row] += 1
                self.dirty[table].add(row)

    def train_some(self) -> None:
        self.train(
            {
                t.name: self.random.choice(t.rows, max(1, t.rows // 3), replace=False).tolist()
                for t in self.schema.tables
            }
        )

    def parts(self, rows: dict[str, Iterable[int]]) -> list[SegmentPart]:
        found = []
        for table, wanted in rows.items():
            for shard in range(self.placement.shards):
                begin, end = self.placement.row_range(self.schema, table, shard)
                ids = np.array(sorted(r for r in wanted if begin <= r < end), np.int64)
                if len(ids):
                    found.append(
                        SegmentPart(
                            shard=shard,
                            table=table,
                            rows=ids,
                            weight=self.weight[table][ids],
                            state=self.state[table][ids],
                            count=ids.astype(np.uint32) + 1,
                            close=self._close,
                        )
                    )
        return found

    def _close(self) -> None:
        self.closed += 1

    def all_rows(self) -> dict[str, Iterable[int]]:
        return {t.name: range(t.rows) for t in self.schema.tables}

    def save(
        self, writer: StoreWriter, kind: str, rows: dict[str, Iterable[int]] | None = None
    ) -> CommitInfo:
        chosen: dict[str, Iterable[int]] = dict(self.dirty) if rows is None else rows
        if kind == "base":
            chosen = self.all_rows()
        with writer.begin(
            kind, step=self.step, samples=self.step * 10, engine={"learning_rate": 0.1}
        ) as save:
            for part in self.parts(chosen):
                save.add(part)
            info = save.commit(
                {"mlp": np.full(3, self.step, np.float32), "rng": b"%d" % self.step}, {"at": self.step}
            )
        if kind != "priority":
            self.dirty = {name: set() for name in self.dirty}
        return info

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        for each in stored:
            found = each.read()
            assert found.state is not None
            self.weight[each.table][found.rows] = found.weight
            self.state[each.table][found.rows] = found.state
            self.calls.append((each.table, len(found.rows), each.priority))

    def rows(self) -> dict[str, tuple[bytes, bytes]]:
        return {name: (self.weight[name].tobytes(), self.state[name].tobytes()) for name in self.weight}


def restored(store: CheckpointStore, mode: str = "exact") -> dict[str, tuple[bytes, bytes]]:
    """The rows of the latest point, over rows that no save has."""
    model = Model(seed=99)
    store.latest(mode).plan().apply(model)  # type: ignore[arg-type]
    return model.rows()


Rows = dict[str, tuple[bytes, bytes]]


def history(path: Path) -> tuple[CheckpointStore, list[Rows]]:
    """A base, a delta, a priority save of some rows, a delta, a priority save: and the rows at each.

    Shard and global sequences are 2 (step 1) to 6 (step 5), after the epoch 1. Always of the same run.
    """
    template, seen = _template()
    shutil.copytree(template, path, dirs_exist_ok=True)
    return CheckpointStore(path), seen


@functools.cache
def _template() -> tuple[Path, list[Rows]]:
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path)
    return path, write_history(path)


def write_history(path: Path) -> list[Rows]:
    model, seen = Model(), []
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT) as writer:
        for kind in ("base", "delta", "priority", "delta", "priority"):
            model.train_some()
            some = {name: sorted(ids)[:2] for name, ids in model.dirty.items()}
            model.save(writer, kind, some if kind == "priority" else None)
            seen.append(model.rows())
    return seen


def priorities(path: Path, count: int = 4) -> tuple[Model, list[Rows]]:
    """A base, then priority saves of changing rows; the rows that a running restore gives after each."""
    model, seen = Model(), []
    with CheckpointStore(path).writer(SCHEMA, PLACEMENT) as writer:
        model.save(writer, "base")
        base = model.rows()
        kept = {name: [bytearray(data) for data in pair] for name, pair in base.items()}
        for number in range(count):
            model.train_some()
            some = {name: sorted(ids)[number % 2 :: 2] for name, ids in model.dirty.items()}
            model.save(writer, "priority", some)
            for name, ids in some.items():
                for row in ids:
                    for array, data in zip((model.weight[name], model.state[name]), kept[name], strict=True):
                        size = array[row].nbytes
                        data[row * size : (row + 1) * size] = array[row].tobytes()
            seen.append({name: (bytes(pair[0]), bytes(pair[1])) for name, pair in kept.items()})
    return model, seen


def manifest_path(path: Path, chain: str, sequence: int) -> Path:
    return path / chain / "manifests" / f"{sequence:012d}.json"


def segment_path(path: Path, chain: str, sequence: int, index: int = 0) -> Path:
    return path / chain / "segments" / f"{sequence:012d}-{index:03d}.safetensors"


def flip(path: Path, at: int = -1) -> None:
    """Inverts the lowest bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def place(path: Path, tensor: str) -> int:
    """Where the bytes of a tensor begin in a segment."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    begin: int = json.loads(data[8 : 8 + length])[tensor]["data_offsets"][0]
    return 8 + length + begin


def rewrite(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Changes the JSON of a manifest and gives it the right CRC again."""
    body = json.loads(path.read_bytes()[:-16])
    change(body)
    text = json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"
    path.write_bytes(text + b"crc32c %08x\n" % _native.crc32c(describe(np.frombuffer(text, np.uint8))))


def python_environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path}


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a process of its own that can import this file."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def read_rows(
    path: Path, record: SegmentRecord, schema: CollectionSchema, placement: Placement, shard: int
) -> dict[str, TableRows]:
    """The rows of every table in a segment."""
    with stored_rows(path, record, schema, placement, shard) as tables:
        return {stored.table: stored.read() for stored in tables}


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def increments(path: Path) -> list[int]:
    """How many commits are on the base of each chain, as a running restore reads them."""
    plan = CheckpointStore(path).latest("running").plan()
    return [len(chain.commits) - 1 for chain in plan.chains]
