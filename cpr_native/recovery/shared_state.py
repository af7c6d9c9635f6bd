"""What a manager keeps in shared memory beside the tables, and whether a new process may go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError, SchemaMismatchError
from cpr_native.recovery.collection import TrainedCollection
from cpr_native.recovery.dense import DenseState, rng_state
from cpr_native.recovery.flat import flatten, restored
from cpr_native.shared import SharedMemory
from cpr_native.store import CheckpointStore
from cpr_native.store.manifest import EXACT_KINDS, Manifest


@dataclass(frozen=True, kw_only=True)
class Left:
    """What an earlier process left: the books of its manager, its dense state, and saves it did not enter.

    `newer`: saves that were committed after the books were written, newest first; `damaged`: manifests of
    the store that are.
    """

    books: Mapping[str, Any]
    dense: Mapping[str, Any]
    newer: tuple[Manifest, ...]
    damaged: tuple[str, ...]


class SharedState:
    """Commits the state of a job to `memory` step by step; `tables` are built in it, `dense` is beside them.

    Raises ValueError when a table lies elsewhere.
    """

    def __init__(self, memory: SharedMemory, tables: TrainedCollection, dense: DenseState) -> None:
        outside = [
            name for part in tables.parts for name in part.names if part.engine.region is not memory.region
        ]
        if outside:
            raise ValueError(
                f"shared: expected every table to be built in {memory.name}, got {outside} elsewhere"
            )
        self._memory = memory
        self._tables = tables
        self._dense = dense
        self._steps = 0
        self.refused = memory.refused
        self.attachable = memory.attached

    def commit(self, books: Mapping[str, Any], *, ends_step: bool = True) -> None:
        """Make the step that ended complete: everything as of now counts, and no row is in doubt.

        `ends_step`: False where none ended; rows that are in doubt stay so.

        Raises TypeError for state of other than plain values and tensors, OSError without space; what was
        committed before counts then.
        """
        state = {"dense": {**self._dense.aliased(), "rng": rng_state()}, "books": dict(books)}
        state["scalars"] = self._tables.module.optimizer_scalars()
        text, tensors = flatten(state)
        self._memory.region.commit(text, [describe(tensor) for tensor in tensors], ends_step=ends_step)
        self._steps = 0

    def stepped(self, books: Any) -> None:
        """Commit what `books()` returns at every `every`-th call."""
        self._steps += 1
        if self._steps >= self._memory.every:
            self.commit(books())

    def invalidate(self) -> None:
        """Make what is there count for nothing until the next commit: rows are about to be restored."""
        self._memory.region.invalidate()
        self.attachable = False

    def refuse(self, reason: str) -> None:
        """Do not go on from what is there, for `reason`."""
        self.refused, self.attachable = reason, False

    def find(self, store: CheckpointStore) -> Left | None:
        """Return what an earlier process left; None, with `refused` saying why, when it is not to be used.

        `store`: holds the commits that the rows' dirty bits are relative to. Nothing is changed.
        """
        if not self.attachable:
            return None
        try:
            text, data = self._memory.region.read()
            state = restored(text, data)
            self._dense.check(state["dense"])
            newer, damaged = _newer(store, state["books"], self._tables)
        except (CorruptionError, ValueError) as error:
            self.refuse(str(error))
            return None
        books = {**state["books"], "scalars": state["scalars"]}
        return Left(books=books, dense=state["dense"], newer=tuple(newer), damaged=tuple(damaged))

    def attach(self, left: Left) -> dict[str, NDArray[np.int64] | None]:
        """Go on with the tables and the dense state; return the rows in doubt by table, None for any."""
        self._dense.restore(left.dense)
        self._tables.module.load_optimizer_scalars(left.books["scalars"])
        doubtful = {}
        for part in self._tables.parts:
            part.engine.reattach()
            for index, name in enumerate(part.names):
                doubtful[name] = part.engine.doubtful_rows(index)
        return doubtful

    def begin_anew(self) -> None:
        """Put rows that an earlier process left, and that were refused, back to their initial values.

        Raises ValueError when they were not.
        """
        if self.attachable:
            raise ValueError(
                f"{self._memory.name} holds the tables of an earlier process: call resume() first to go on "
                "with them, or remove them"
            )
        if self._memory.attached:
            self.invalidate()
            for part in self._tables.parts:
                for index, spec in enumerate(part.engine.tables):
                    end = spec.row_offset + spec.num_embeddings
                    part.engine.reset_rows(index, spec.row_offset, end)
                    part.engine.clear_trackers(index, spec.row_offset, end, dirty=True)


def _newer(
    store: CheckpointStore, books: Mapping[str, Any], tables: TrainedCollection
) -> tuple[list[Manifest], list[str]]:
    """Return the saves that are in the store's history and not in `books`, and what is damaged there.

    Raises SchemaMismatchError when the tables are not relative to that history: it is another run's, went
    back, or went on without them.
    """
    where, damaged = store.path, list[str]()
    directory = store.directory()
    identity = directory.whole.identity
    if identity is None:
        if books["commit"] is not None:
            raise SchemaMismatchError(f"{where}: expected commit {books['commit']}, got none")
        return [], []
    if identity.run_id != books["run"]:
        raise SchemaMismatchError(f"{where}: run id: expected {books['run']}, got {identity.run_id}")
    tables.schema.check_same(identity.schema, str(where))
    newer: list[Manifest] = []
    known = books["commit"]
    for manifest, _ in directory.history(damaged):
        if known is not None and manifest.sequence <= known:
            if manifest.sequence < known:
                raise SchemaMismatchError(
                    f"{where}: expected commit {known} in its history, got {manifest.sequence}: it went back"
                )
            break
        if manifest.incarnation != books["incarnation"] or manifest.step > books["steps"]:
            raise SchemaMismatchError(
                f"{where}: commit {manifest.sequence}, step {manifest.step}, is not of the process that left "
                f"step {books['steps']} in shared memory"
            )
        newer.append(manifest)
    else:
        if known is not None and not newer:
            raise SchemaMismatchError(f"{where}: expected commit {known} in its history, got none")
    return newer, damaged


def exact_of(left: Left) -> Manifest | None:
    """Return the newest base or delta among the saves that the books do not know."""
    return next((manifest for manifest in left.newer if manifest.kind in EXACT_KINDS), None)
