"""Jobs of every policy with a slow account of each save: what its files must hold, and what they do hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recovery.jobs import BATCH, OPTIMIZERS, ROWS, Ids, Net, in_shard, manage, train_step
from reference import table_key
from reference.distance import distances
from reference.drift import most_drifted
from reference.trackers import hash2

from cpr_native.config import Trackers
from cpr_native.policy import (
    Delta,
    Drift,
    Mfu,
    Partial,
    Policy,
    Random,
    RoundRobin,
    Scar,
    Ssu,
)
from cpr_native.recovery import RecoveryManager, RecoveryReport

NAMES = ("big", "mid", "tiny")
LARGE = (0, 1)  # of all rows 98 %
FRACTION = 0.2
SEED = 11
# T_save = 2 * 0.0625 * 4 * 20 = 10 hours of one step each: a save of a fifth every 2 steps.
PLS = 0.0625
_SHARE: dict[str, Any] = {"fraction": FRACTION, "row_share": 0.95}
PRIORITY: dict[str, Policy] = {
    "mfu": Mfu(**_SHARE),
    "ssu": Ssu(**_SHARE),
    "scar": Scar(**_SHARE),
    "drift": Drift(**_SHARE),
    "random": Random(**_SHARE, seed=4),
    "round_robin": RoundRobin(**_SHARE),
}
POLICIES: dict[str, Policy] = {
    **PRIORITY,
    "partial_small": Partial(small_tables_fraction=FRACTION, row_share=0.95),
    "delta_partial": Delta(recovery="partial", interval_fraction=FRACTION, base_every=4),
}

Rows = NDArray[np.int64]


@dataclass
class Table:
    """Rows of one table."""

    rows: Rows
    weight: NDArray[np.float32]
    state: NDArray[np.float32]


def most_used(counts: NDArray[np.uint32], quota: int, *, key: int, sequence: int) -> Rows:
    """The rows that the snapshot number `sequence` takes for a quota.

    Buckets are taken from the highest count down, and of the one that does not fit whole the rows whose hash
    is below the share that fits. Counts below 16 have a bucket each; larger ones must fit.
    """
    above = np.flatnonzero(counts >= 16)
    assert len(above) <= quota
    for count in range(15, 0, -1):
        inside = np.flatnonzero(counts == count)
        if len(above) + len(inside) > quota:
            boundary = int(np.floor((quota - len(above)) / len(inside) * 2**32))
            hash_key = hash2((key + 1) % 2**64, sequence)
            inside = np.array([r for r in inside if hash2(hash_key, int(r)) >> 32 < boundary], np.int64)
            return np.sort(np.concatenate([above, inside]))
        above = np.concatenate([above, inside])
    return np.sort(above)


def first_of(keys: Sequence[Any], quota: int) -> Rows:
    """The rows of the `quota` largest keys, of equal ones the lower rows, sorted the slow way."""
    return np.array(sorted(sorted(range(len(keys)), key=lambda row: (-keys[row], row))[:quota]), np.int64)


@dataclass
class Job:
    """One model and manager, trained step by step; `saved`: what the files must hold of every row.

    `weight[t]`, `state[t]`: of each row as last saved; `begun`: snapshots of this engine; `due`: number of
    the next due save; `checked`: rows of each table in every commit, as compared with the files.
    """

    name: str
    path: Path
    model: Net = field(init=False)
    manager: RecoveryManager = field(init=False)
    weight: list[NDArray[np.float32]] = field(default_factory=list)
    state: list[NDArray[np.float32]] = field(default_factory=list)
    begun: int = 0
    due: int = 0
    seen: set[Path] = field(default_factory=set)
    checked: list[dict[str, Table]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._load()
        self.manager.start()
        self.weight, self.state = self.now()
        self._check([np.arange(rows) for rows in ROWS])

    def _load(self) -> None:
        trackers = Trackers(ssu_fraction=FRACTION, drift=self.name == "drift")
        self.model = Net(OPTIMIZERS["adagrad"], trackers)
        self.manager = manage(self.model, self.path, POLICIES[self.name], target_pls=PLS, background=False)

    def now(self) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """Copies of weight and state of each table."""
        engine = self.model.tables.engine
        states = [engine.state(table) for table in range(3)]
        return [engine.weight(table).copy() for table in range(3)], [s for s in states if s is not None]

    def step(self, batch: Ids) -> bool:
        """Train a step; compare the save, if one was due, with the account and return whether it was."""
        train_step(self.model, batch)
        expected = self.expected()
        saves = len(self.manager.saves)
        self.manager.step(BATCH)
        if len(self.manager.saves) == saves:
            return False
        self._check(expected)
        self.due += 1
        return True

    def expected(self) -> list[Rows]:
        """Which rows of each table a save would take now."""
        engine, policy = self.model.tables.engine, POLICIES[self.name]
        kind = policy.kind(self.due)
        if kind == "base":
            return [np.arange(rows) for rows in ROWS]
        if kind == "delta":
            return [np.flatnonzero(engine.dirty(table)) for table in range(3)]
        return [self._ranked(table) if table in LARGE else np.arange(ROWS[table]) for table in range(3)]

    def _ranked(self, table: int) -> Rows:
        engine, rows = self.model.tables.engine, ROWS[table]
        quota, key = int(FRACTION * rows), table_key(SEED, NAMES[table])
        if self.name == "mfu":
            return most_used(engine.counts(table), quota, key=key, sequence=self.begun)
        if self.name == "drift":
            return most_drifted(engine.drift(table), quota, key=key, sequence=self.begun)
        if self.name == "ssu":
            return engine.sampled_rows(table)
        if self.name == "scar":
            changes = distances(engine.weight(table), self.weight[table])
            return first_of(changes, min(quota, np.count_nonzero(changes)))
        if self.name == "random":
            return first_of(np.random.PCG64((4, self.due, table)).random_raw(rows).tolist(), quota)
        if self.name == "round_robin":
            return np.sort((np.arange(quota) + self.due * quota) % rows)
        assert self.name == "partial_small"
        return np.zeros(0, np.int64)

    def _check(self, expected: list[Rows]) -> None:
        """Enter a save of the rows `expected` and compare it with its files."""
        weight, state = self.now()
        found = self.read_new()
        for table, rows in enumerate(expected):
            self.weight[table][rows] = weight[table][rows]
            self.state[table][rows] = state[table][rows]
            disk = found[NAMES[table]]
            assert np.array_equal(disk.rows, rows), (self.name, self.due, NAMES[table])
            assert np.array_equal(disk.weight, weight[table][rows])
            assert np.array_equal(disk.state, state[table][rows])
        assert self.manager.saves[-1].rows == sum(map(len, expected))
        self.begun += 1
        self.checked.append(found)

    def read_new(self) -> dict[str, Table]:
        """Rows of each table in the segments written since the last call, sorted."""
        found: dict[str, list[dict[str, NDArray[Any]]]] = {name: [] for name in NAMES}
        for path in sorted((self.path / "shards").glob("*/segments/*.safetensors")):
            if path in self.seen:
                continue
            self.seen.add(path)
            tensors = read_segment(path)
            for name in {key.rpartition(".")[0] for key in tensors}:
                kinds = ("rows", "weight", "state")
                found[name].append({kind: tensors[f"{name}.{kind}"] for kind in kinds})
        return {name: _sorted(name, parts) for name, parts in found.items()}

    def lose(self, shards: list[int]) -> RecoveryReport:
        """Lose `shards`, recover, and compare every row with the account."""
        weight, state = self.now()
        for table in range(3):
            for shard in shards:
                rows = in_shard(table, shard)
                weight[table][rows], state[table][rows] = self.weight[table][rows], self.state[table][rows]
        report = self.manager.recover(shards)
        self.compare(weight, state)
        return report

    def restart(self) -> RecoveryReport:
        """Go on with a new model, as after a crash: with the newest rows of every commit."""
        self.manager._saves.close()
        self._load()
        self.begun = 0
        report = self.manager.resume()
        assert report is not None
        self.compare(self.weight, self.state)
        return report

    def compare(self, weight: list[NDArray[np.float32]], state: list[NDArray[np.float32]]) -> None:
        """Compare all rows in memory with these."""
        for ours, theirs in zip([*self.now()[0], *self.now()[1]], [*weight, *state], strict=True):
            assert np.array_equal(ours, theirs)


def _sorted(name: str, parts: list[dict[str, NDArray[Any]]]) -> Table:
    if not parts:
        dim = 8 if name == "big" else 4
        return Table(np.zeros(0, np.int64), np.zeros((0, dim), np.float32), np.zeros(0, np.float32))
    rows, weight, state = (
        np.concatenate([part[kind] for part in parts]) for kind in ("rows", "weight", "state")
    )
    order = np.argsort(rows, kind="stable")
    return Table(rows[order], weight[order], state[order])


def read_segment(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    dtypes = {"I64": np.int64, "F32": np.float32, "U32": np.uint32}
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors
