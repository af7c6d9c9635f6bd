"""Writers of single shards that make a save together: here threads of one process, each with its chain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_native._native import Collection, Selection, TableSpec
from cpr_native._tensor import describe
from cpr_native.errors import CprError, FencedError
from cpr_native.store import CheckpointStore, CollectionSchema, Placement, TableSchema, verify
from cpr_native.store.commit_info import CommitInfo
from cpr_native.store.part_writer import PartWriter

ROWS, DIM = 30, 4
SCHEMA = CollectionSchema(
    tables=tuple(TableSchema(name=f"t{i}", rows=ROWS, dim=DIM, init_min=-0.1, init_max=0.1) for i in (0, 1)),
    optimizer="sgd",
)
PLACEMENT = Placement(shards=2, strategy="table_wise", first={"t0": 0, "t1": 1})


class Process:
    """One shard's engine and writer."""

    def __init__(self, path: Path, shard: int, first: Process | None = None, **options: Any) -> None:
        spec = TableSpec(
            name=f"t{shard}", num_embeddings=ROWS, embedding_dim=DIM, init_min=-0.1, init_max=0.1
        )
        self.engine = Collection([spec], [0], optimizer="sgd", learning_rate=0.5, seed=shard)
        self.shard = shard
        self.writer = PartWriter(
            path, SCHEMA, PLACEMENT, shard=shard, tables=[f"t{shard}"], limit=60.0,
            run_id=None if first is None else first.writer.run_id,
            incarnation=None if first is None else first.writer.incarnation, **options,
        )  # fmt: skip

    def train(self) -> None:
        ids = np.arange(self.shard, 12, 3)
        out = np.empty((len(ids), DIM), np.float32)
        offsets = np.arange(len(ids) + 1)
        batch = self.engine.lookup(
            describe(ids), describe(offsets), None, describe(out), threads=1, keep=True
        )
        assert batch is not None
        self.engine.update(batch, describe(np.ones_like(out)), threads=1)

    def save(self, kind: str, step: int) -> CommitInfo:
        save = self.writer.begin(kind, step=step, samples=step)
        selection = Selection.all() if kind == "base" else Selection.dirty()
        snapshot = self.engine.begin([selection], clears_dirty=True, shard_rows=[(self.shard, 1)])
        try:
            save.add_snapshot(snapshot)
            info = save.commit(dense={"state": b"dense of %d" % self.shard}, info={"from": self.shard})
        except BaseException:
            save.abort()
            snapshot.abort()
            raise
        snapshot.commit()
        return info


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What the calls return, or raise, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def save_all(processes: list[Process], kind: str, step: int) -> list[Any]:
    return together([partial(process.save, kind, step) for process in processes])


def opened(path: Path, **options: Any) -> list[Process]:
    first = Process(path, 0, **options)
    return [first, Process(path, 1, first, **options)]


@contextmanager
def impatient(process: Process) -> Iterator[None]:
    """Saves of this one do not wait long for the others."""
    writer = process.writer
    usual, writer._limit = writer._limit, 0.3
    try:
        yield
    finally:
        writer._limit = usual


def close(processes: list[Process]) -> None:
    for process in processes:
        process.writer.close()


def weights(path: Path) -> dict[str, bytes]:
    found = {t.name: np.full((ROWS, DIM), np.nan, np.float32) for t in SCHEMA.tables}

    class Sink:
        def load_rows(self, stored: Any) -> None:
            for each in stored:
                read = each.read()
                found[each.table][read.rows] = read.weight

    CheckpointStore(path).latest().plan().apply(Sink())
    return {name: weight.tobytes() for name, weight in found.items()}


def test_a_save_of_all_shards_is_one_commit(tmp_path: Path) -> None:
    processes = opened(tmp_path)
    for step, kind in enumerate(("base", "delta", "delta"), 1):
        for process in processes:
            process.train()
        infos = save_all(processes, kind, step)
        assert infos[0].sequence == infos[1].sequence
    point = CheckpointStore(tmp_path).latest()
    assert (point.step, sorted(point.manifest.commits), point.info["from"]) == (3, [0, 1], 0)
    assert point.dense()["state"] == b"dense of 0"
    assert point.directory.shard(1).follow(point.manifest.commits[1]).info["from"] == 1
    assert weights(tmp_path) == {f"t{p.shard}": p.engine.weight(0).tobytes() for p in processes}
    assert verify(tmp_path) == []
    close(processes)


@pytest.mark.parametrize("absent", [0, 1])
def test_without_the_other_shard_there_is_no_commit_and_rows_stay_dirty(tmp_path: Path, absent: int) -> None:
    processes = opened(tmp_path)
    save_all(processes, "base", 1)
    for process in processes:
        process.train()
    before = weights(tmp_path)
    here = processes[1 - absent]
    dirty = here.engine.num_dirty(0)
    with pytest.raises(TimeoutError, match=r"did not commit|no global commit"), impatient(here):
        here.save("delta", 2)
    assert weights(tmp_path) == before
    assert CheckpointStore(tmp_path).latest().step == 1
    assert here.engine.num_dirty(0) == dirty > 0
    processes[absent].writer.begin("delta", step=2, samples=2).abort()  # it had begun that one too
    infos = save_all(processes, "delta", 3)
    assert [info.step for info in infos] == [3, 3]
    assert weights(tmp_path) == {f"t{p.shard}": p.engine.weight(0).tobytes() for p in processes}
    assert verify(tmp_path) == []
    close(processes)


def test_history_goes_on_from_a_point_in_all_chains(tmp_path: Path) -> None:
    processes = opened(tmp_path)
    seen = []
    for step, kind in enumerate(("base", "delta", "delta"), 1):
        save_all(processes, kind, step)
        seen.append(weights(tmp_path))
        for process in processes:
            process.train()
    close(processes)
    processes, meet = opened(tmp_path), threading.Barrier(2)
    assert not processes[0].writer.permits("delta")
    point = CheckpointStore(tmp_path).points()[1]
    done = together([partial(process.writer.rollback, point, meet.wait) for process in processes])
    assert done == [None, None]
    assert CheckpointStore(tmp_path).latest().step == 2
    assert weights(tmp_path) == seen[1]
    save_all(processes, "base", 4)
    assert verify(tmp_path) == []
    close(processes)


def test_shard_0_removes_what_no_kept_point_needs_of_all(tmp_path: Path) -> None:
    processes = opened(tmp_path, keep=1)
    for step in range(1, 5):
        save_all(processes, "base", step)
    assert [point.step for point in CheckpointStore(tmp_path).points()] == [4]
    assert len(list((tmp_path / "shards/1/manifests").glob("*.json"))) <= 2
    assert verify(tmp_path) == []
    close(processes)


def test_an_older_life_of_the_job_cannot_commit(tmp_path: Path) -> None:
    old = opened(tmp_path)
    save_all(old, "base", 1)
    before = weights(tmp_path)
    old[0].writer.close()
    new = Process(tmp_path, 0)  # shard 0 started again; the old shard 1 still lives
    old[1].train()
    with pytest.raises((TimeoutError, FencedError)), impatient(old[1]):
        old[1].save("delta", 2)
    assert weights(tmp_path) == before
    close([new, old[1]])


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="incarnation: expected None for shard 0 alone, got None for 1"):
        PartWriter(tmp_path, SCHEMA, PLACEMENT, shard=1, tables=["t1"])
    processes = opened(tmp_path)
    with pytest.raises(CprError, match="not permitted before a base"):
        processes[0].writer.begin("delta", step=1, samples=1)
    close(processes)
