"""What a shard keeps in shared memory beside its rows, and whether the next process may go on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpr_native._tensor import describe
from cpr_native.cluster.kept_rows import KeptRows, parse, rows_to_write
from cpr_native.cluster.scratch import Scratch
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.cluster.tables import RowGradients, ShardTables
from cpr_native.errors import CorruptionError, LockedError
from cpr_native.shared import SharedMemory, keeper
from cpr_native.store.chain import ChainReader
from cpr_native.store.manifest import DATA_KINDS
from cpr_native.store.restore import before

KEEPER = "keeper"


def attach_memory(spec: ClusterSpec, shard: int) -> tuple[SharedMemory | None, str | None]:
    """Return the shared memory of a shard; None without, and why if an older life of it, frozen say, has it.

    Raises OSError.
    """
    if spec.shared is None:
        return None, None
    try:
        if spec.shared == KEEPER:
            return SharedMemory.keeper(_name(spec, shard), discard=True), None
        folder = Path(spec.shared)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return SharedMemory(folder / _name(spec, shard), discard=True), None
    except LockedError as error:
        return None, str(error)


def free_memory(spec: ClusterSpec, shard: int) -> bool:
    """Free what a shard kept in shared memory on this machine, once its process has ended; False without any.

    For a run that is over, or a shard that went on elsewhere. Raises OSError.
    """
    if spec.shared is None:
        return False
    if spec.shared == KEEPER:
        return keeper.stop(_name(spec, shard))
    try:
        (Path(spec.shared) / _name(spec, shard)).unlink()
    except FileNotFoundError:
        return False
    return True


def _name(spec: ClusterSpec, shard: int) -> str:
    return f"{spec.run_id}-shard-{shard:05d}"


class SharedBooks:
    """Watermarks and scalars beside the rows of `tables`, which lie in `memory`. For one thread.

    `run`: identity of the checkpoint directory.
    """

    def __init__(self, memory: SharedMemory, tables: ShardTables, run: str) -> None:
        self._memory = memory
        self._tables = tables
        self._run = run
        self._books: dict[str, Any] = {}
        self._kept: list[KeptRows] = []
        self._scratch = Scratch()

    def begins(self, updates: Sequence[RowGradients]) -> None:
        """Keep the rows that `updates` are about to write, until the next commit. Raises as `commit`."""
        kept = rows_to_write(self._tables, updates, self._scratch)
        books = {**self._books, "kept": [(index, len(rows.rows)) for index, rows in kept]}
        tensors = [describe(array) for _, rows in kept for array in rows.arrays]
        self._memory.region.commit(json.dumps(books).encode(), tensors, ends_step=False)

    def commit(
        self, *, incarnation: int, generation: int, watermarks: Sequence[int], saved: int | None
    ) -> None:
        """Make the step that ended complete: the rows as of now count with these watermarks.

        `saved`: sequence number of the newest save that is known. Raises OSError without space; what was
        committed before counts then.
        """
        self._books = {
            "run": self._run,
            "incarnation": incarnation,
            "generation": generation,
            "watermarks": list(watermarks),
            "saved": saved,
            "scalars": self._tables.scalars(),
            "kept": [],
        }
        self._memory.region.commit(json.dumps(self._books).encode(), [])

    def invalidate(self) -> None:
        """Make what is there count for nothing until the next commit: rows are about to be restored."""
        self._memory.region.invalidate()

    def find(self, reader: ChainReader) -> tuple[Mapping[str, Any] | None, str | None]:
        """Return what an earlier process left, or why it is not to be used; neither if it left nothing.

        `reader`: the chain that the rows' dirty bits are relative to. Nothing is changed.
        """
        if not self._memory.attached:
            return None, self._memory.refused
        try:
            text, data = self._memory.region.read()
            left = json.loads(text)
            self._kept = parse(self._tables, left["kept"], data)
        except (CorruptionError, ValueError) as error:
            return None, str(error)
        refused = _difference(left, reader, self._run)
        return (None, f"{self._memory.name}: {refused}") if refused else (left, None)

    def attach(self, left: Mapping[str, Any]) -> None:
        """Go on with the rows that `find` returned the books of; rows in doubt become dirty.

        Those that an update was writing are what they were before it.
        """
        for engine in self._tables.engines:
            engine.reattach()
        for kept in self._kept:
            kept.put_back()
        self._kept = []
        self._tables.set_scalars(left["scalars"])

    def begin_anew(self) -> None:
        """Put rows that an earlier process left, and that are not used, back to their initial values."""
        if not self._memory.attached:
            return
        self.invalidate()
        for row_range in self._tables.ranges:
            engine, table = self._tables.engine.home(row_range.table)
            engine.reset_rows(table, row_range.begin, row_range.end)
            engine.clear_trackers(table, row_range.begin, row_range.end, dirty=True)


def _difference(left: Mapping[str, Any], reader: ChainReader, run: str) -> str | None:
    """Return why rows are not relative to a chain: another run's, one that went back or on without them."""
    if left["run"] != run:
        return f"run id: expected {run}, got {left['run']}"
    known, skipped = left["saved"], list[str]()
    at = reader.newest(skipped)
    while at is not None:
        manifest = at[0]
        if manifest.kind in DATA_KINDS:
            if known is not None and manifest.sequence <= known:
                return None if manifest.sequence == known else _missing(known)
            if manifest.incarnation != left["incarnation"] or manifest.step > min(left["watermarks"]):
                return (
                    f"commit {manifest.sequence}, step {manifest.step}, is not of the process that left step "
                    f"{min(left['watermarks'])}"
                )
        at, _ = before(reader, manifest, skipped)
    return None if known is None else _missing(known)


def _missing(known: int) -> str:
    return f"expected commit {known} in the chain's history"
