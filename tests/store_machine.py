"""A checkpoint directory under random operations, beside a model of what it must hold.

The reference is plain dictionaries: every exact state that a global commit has, and the mixed state that
a running restore gives. Everything that the store does in between must not be seen in either.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from failing_system import failing_from
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_cases import SCHEMA, Model, Rows

from cpr_native.errors import NoCheckpointError
from cpr_native.store import CheckpointStore, CollectionSchema, Placement, StoreWriter, inspect, verify
from cpr_native.store.housekeeping import Housekeeping
from cpr_native.store.system import use

SMALL = CollectionSchema(tables=SCHEMA.tables[1:], optimizer="row_wise_adagrad")
TWO = Placement.contiguous(SMALL, 2)
COUNTED = {"operations": 0}  # done by all machines of this process


class StoreMachine(RuleBasedStateMachine):
    """Operations of one training job on one directory; `check` after each compares it with the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="cpr-machine-"))
        self.lives = 0
        self.path = self.root / "0"
        self.keep: int | None = None
        self.writer: StoreWriter | None = None
        self.model = Model(schema=SMALL, placement=TWO)
        self.exact: list[tuple[int, Rows]] = []  # step and rows of the exact points of the live history
        self.kept: list[int] = []  # steps of those that retention may not have removed
        self.running = copy.deepcopy(self.model)
        self.numbers: dict[str, int] = {}

    @initialize(keep=st.sampled_from([None, 1, 2]))
    def open(self, keep: int | None) -> None:
        self.keep = keep
        self.writer = self._opened()
        self.save("base")

    def _opened(self) -> StoreWriter:
        return CheckpointStore(self.path).writer(SMALL, TWO, keep=self.keep)

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(self.path)

    def _taken(self, kind: str, model: Model) -> dict[str, Any]:
        rows: dict[str, Any] = {name: sorted(ids) for name, ids in model.dirty.items()}
        if kind == "priority":
            return {name: ids[: (len(ids) + 1) // 2] for name, ids in rows.items()}
        return model.all_rows() if kind == "base" else rows

    def _shown(self, taken: dict[str, Any], shards: set[int]) -> None:
        """Enters rows in the running reference: those of the shards that have committed."""
        for part in self.model.parts(taken):
            if part.shard in shards:
                self.running.weight[part.table][part.rows] = part.weight
                self.running.state[part.table][part.rows] = part.state

    @rule(kind=st.sampled_from(["base", "delta", "delta", "priority"]))
    def save(self, kind: str) -> None:
        assert self.writer is not None
        self.model.train_some()
        if not self.writer.permits(kind):
            kind = "base"
        taken = self._taken(kind, self.model)
        info = self.model.save(self.writer, kind, taken)
        assert info.retention_error is None
        self._shown(taken, {0, 1})
        if kind != "priority":
            self._enter_exact()

    def _enter_exact(self) -> None:
        self.exact.append((self.model.step, self.model.rows()))
        self.kept = [*self.kept, self.model.step][-(self.keep or len(self.exact)) :]

    @rule(kind=st.sampled_from(["base", "delta", "priority"]), at=st.integers(0, 40))
    def failed_save(self, kind: str, at: int) -> None:
        """The disk fails from some call on: the save counts if, and only if, its global commit is there."""
        assert self.writer is not None
        self.model.train_some()
        if not self.writer.permits(kind):
            kind = "base"
        taken, dirty = self._taken(kind, self.model), copy.deepcopy(self.model.dirty)
        before = self._heads()
        with use(failing_from(at + 1)):
            try:
                self.model.save(self.writer, kind, taken)
            except OSError:
                self.model.dirty = dirty
        after = self._heads()
        self._shown(
            taken, {shard for shard in (0, 1) if after[f"shards/{shard}"] != before[f"shards/{shard}"]}
        )
        if after["global"] != before["global"] and kind != "priority":
            self._enter_exact()
        if any(chain._position.head.sequence != after[chain.chain] for chain in self.writer._chains):  # type: ignore[union-attr]
            self.restart("running", orderly=False)  # whether a commit is durable is not known

    def _heads(self) -> dict[str, int]:
        chains = self.store.directory()
        readers = (chains.whole, chains.shard(0), chains.shard(1))
        return {reader.chain: at[1].sequence for reader in readers if (at := reader.newest([])) is not None}

    @rule(back=st.integers(0, 2))
    def rollback(self, back: int) -> None:
        assert self.writer is not None
        points = self.store.points()
        point = points[min(back, len(points) - 1)]
        with self.writer.paused():
            self.writer.rollback(point)
        self.exact = [(step, rows) for step, rows in self.exact if step <= point.step]
        self.kept = [step for step in self.kept if step <= point.step]
        self.store.latest().plan().apply(self.model)
        self.running.weight, self.running.state = copy.deepcopy((self.model.weight, self.model.state))
        self.model.dirty = {name: set() for name in self.model.dirty}

    @rule(mode=st.sampled_from(["exact", "running"]), orderly=st.booleans())
    def restart(self, mode: str, orderly: bool) -> None:
        """The job dies, or ends, and another one goes on from the directory, or from a copy of its files."""
        assert self.writer is not None
        if orderly:
            self.writer.close()
        else:
            self.lives += 1
            self.path = Path(shutil.copytree(self.path, self.root / str(self.lives)))
            self.writer.close()
        self.writer = self._opened()
        point = self.store.latest(mode)  # type: ignore[arg-type]
        point.plan().apply(self.model)
        self.writer.rollback(point)
        self.model.dirty = {name: set(ids) for name, ids in self.model.all_rows().items()}
        if mode == "exact":
            self.running.weight, self.running.state = copy.deepcopy((self.model.weight, self.model.state))
            self.model.dirty = {name: set() for name in self.model.dirty}

    @rule(most=st.integers(0, 2))
    def compact(self, most: int) -> None:
        self._housekeeping().fold(most)

    @rule(at=st.integers(0, 30), crash=st.booleans())
    def compact_interrupted(self, at: int, crash: bool) -> None:
        with use(failing_from(at + 1)), suppress(OSError):
            self._housekeeping().fold(0)
        if crash:
            self.restart("running", orderly=False)

    @precondition(lambda self: self.keep is not None)
    @rule()
    def prune(self) -> None:
        housekeeping = self._housekeeping()
        housekeeping.prune()
        assert housekeeping.retention_error is None

    @precondition(lambda self: self.keep is not None)
    @rule(at=st.integers(0, 20))
    def prune_interrupted(self, at: int) -> None:
        with use(failing_from(at + 1)):
            self._housekeeping().prune()

    def _housekeeping(self) -> Housekeeping:
        assert self.writer is not None
        return self.writer.housekeeping

    @rule()
    def restore_a_shard(self) -> None:
        for shard in (0, 1):
            found = Model(seed=7, schema=SMALL, placement=TWO)
            self.store.shard_plan(shard).apply(found)
            for table in SMALL.tables:
                begin, end = TWO.row_range(SMALL, table.name, shard)
                want = self.running.weight[table.name][begin:end]
                assert found.weight[table.name][begin:end].tobytes() == want.tobytes()

    @invariant()
    def check(self) -> None:
        if self.writer is None:
            return
        COUNTED["operations"] += 1
        assert verify(self.path) == []
        point = self.store.latest("exact")
        assert (point.step, self._rows("exact")) == self.exact[-1]
        assert self._rows("running") == self.running.rows()
        assert point.skipped == ()
        steps = [each.step for each in self.store.points()]
        assert steps[: len(self.kept)] == self.kept[::-1]
        assert steps == [step for step, _ in self.exact[::-1]][: len(steps)]
        for chain in inspect(self.path).chains:
            newest = max(commit.sequence for commit in chain.commits)
            assert newest >= self.numbers.get(chain.chain, 0)
            self.numbers[chain.chain] = newest

    def _rows(self, mode: str) -> Rows:
        found = Model(seed=9, schema=SMALL, placement=TWO)
        try:
            self.store.latest(mode).plan().apply(found)  # type: ignore[arg-type]
        except NoCheckpointError as error:
            raise AssertionError(str(error)) from error
        return found.rows()

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.close()
        shutil.rmtree(self.root)
