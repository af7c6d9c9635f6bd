from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpr_native._native import Collection, Selection, TableSpec
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.shard import RowRange, Shard, make_shards, restore_rows
from cpr_native.store import (
    CheckpointStore,
    CollectionSchema,
    Placement,
    SegmentPart,
    StoreWriter,
    TableSchema,
)

ROWS, DIMS = (10, 7), (4, 3)
NAMES = ("a", "b")
SHARDS = 3
SCHEMA = CollectionSchema(
    tables=tuple(
        TableSchema(name=name, rows=rows, dim=dim, init_min=-1.0, init_max=1.0)
        for name, rows, dim in zip(NAMES, ROWS, DIMS, strict=True)
    ),
    optimizer="row_wise_adagrad",
    seed=5,
)
PLACEMENT = Placement.contiguous(SCHEMA, SHARDS)


def make_engine() -> Collection:
    tables = [
        TableSpec(name=name, num_embeddings=rows, embedding_dim=dim, init_min=-1.0, init_max=1.0)
        for name, rows, dim in zip(NAMES, ROWS, DIMS, strict=True)
    ]
    return Collection(tables, [0, 1], optimizer="row_wise_adagrad", learning_rate=0.1, seed=5)


def step(engine: Collection, ids: list[list[int]]) -> None:
    """One bag per table with the given ids; the gradient is all ones."""
    flat = np.array(ids[0] + ids[1], np.int64)
    offsets = np.array([0, len(ids[0]), len(flat)], np.int64)
    out = np.empty((1, sum(DIMS)), np.float32)
    batch = engine.lookup(describe(flat), describe(offsets), None, describe(out), threads=1, keep=True)
    assert batch is not None
    assert engine.update(batch, describe(np.ones_like(out)), threads=1)


def save(engine: Collection, writer: StoreWriter, kind: str) -> None:
    rule = {"base": Selection.all(), "delta": Selection.dirty(), "priority": Selection.most_used(2)}[kind]
    blocks = [PLACEMENT.blocks[name] for name in NAMES]
    snapshot = engine.begin([rule, rule], clears_dirty=kind != "priority", shard_rows=blocks)
    pending = writer.begin(kind, step=engine.step, samples=engine.step)
    for chunk in snapshot:
        pending.add(
            SegmentPart(
                shard=chunk.shard,
                table=NAMES[chunk.table],
                rows=chunk.rows,
                weight=chunk.weight,
                state=chunk.state,
                count=chunk.count,
                close=chunk.close,
            )
        )
    pending.commit({})
    snapshot.commit()


def rows(engine: Collection) -> list[NDArray[np.float32]]:
    arrays = []
    for table in range(2):
        state = engine.state(table)
        assert state is not None
        arrays.append(np.column_stack([engine.weight(table), state]))
    return arrays


def lost(table: int, shard: int) -> NDArray[np.bool_]:
    mask = np.zeros(ROWS[table], np.bool_)
    begin, end = PLACEMENT.row_range(SCHEMA, NAMES[table], shard)
    mask[begin:end] = True
    return mask


class Setup:
    def __init__(self, path: Path) -> None:
        self.engine = make_engine()
        self.store = CheckpointStore(path)
        self.writer = self.store.writer(SCHEMA, PLACEMENT)
        self.shards = make_shards(self.engine, self.store, SCHEMA, PLACEMENT)
        step(self.engine, [[0, 1, 5], [2, 6]])
        save(self.engine, self.writer, "base")
        self.base = rows(self.engine)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.writer.close()


def test_shards_hold_contiguous_blocks_and_cover_every_row_once() -> None:
    shards = make_shards(make_engine(), CheckpointStore("nowhere"), SCHEMA, PLACEMENT)
    assert [[(r.name, r.table, r.begin, r.end) for r in shard.ranges] for shard in shards] == [
        [("a", 0, 0, 4), ("b", 1, 0, 3)],
        [("a", 0, 4, 8), ("b", 1, 3, 6)],
        [("a", 0, 8, 10), ("b", 1, 6, 7)],
    ]
    assert [len(shard) for shard in shards] == [7, 7, 3]
    assert not Path("nowhere").exists()


def test_empty_ranges_are_left_out() -> None:
    placement = Placement.contiguous(SCHEMA, 8)
    shards = make_shards(make_engine(), CheckpointStore("nowhere"), SCHEMA, placement)
    assert sum(len(shard) for shard in shards) == sum(ROWS)
    assert shards[7].ranges == ()


def test_discard_destroys_the_shards_rows_alone(setup: Setup) -> None:
    setup.shards[1].discard()
    for table, got in enumerate(rows(setup.engine)):
        mask = lost(table, 1)
        assert np.isnan(got[mask]).all()
        assert got[~mask].tobytes() == setup.base[table][~mask].tobytes()


def test_restore_gives_the_newest_commits_of_the_shard_alone(setup: Setup) -> None:
    engine = setup.engine
    step(engine, [[0, 4, 4, 5, 9], [3, 3, 4]])
    save(engine, setup.writer, "delta")
    step(engine, [[4, 4, 6], [3, 3]])
    save(engine, setup.writer, "priority")
    committed = rows(engine)
    step(engine, [[0, 4, 5, 6, 9], [0, 3, 4, 6]])
    now = rows(engine)
    dirty = [engine.dirty(table).copy() for table in range(2)]
    setup.shards[1].discard()
    restored = setup.shards[1].restore()
    for table, got in enumerate(rows(engine)):
        mask = lost(table, 1)
        assert got[mask].tobytes() == committed[table][mask].tobytes()
        assert got[~mask].tobytes() == now[table][~mask].tobytes()
        assert engine.dirty(table).tolist() == dirty[table].tolist()
        assert not engine.counts(table)[mask].any()
        assert engine.counts(table)[~mask].any()
    assert restored.rows == {"a": 4, "b": 3}
    assert restored.reset == {"a": 0, "b": 0}
    assert not restored.broken


def test_restart_makes_rows_of_priority_commits_dirty_and_no_others(setup: Setup) -> None:
    engine = setup.engine
    step(engine, [[4, 4, 4, 5, 5, 6], [3, 3, 4, 4, 5]])
    save(engine, setup.writer, "priority")
    step(engine, [[7], [0]])
    setup.shards[1].restore(restart=True)
    assert np.flatnonzero(engine.dirty(0)).tolist() == [4, 5]
    assert np.flatnonzero(engine.dirty(1)).tolist() == [0, 3, 4]


def test_rows_never_saved_return_to_their_initial_weight_and_state(tmp_path: Path) -> None:
    engine, fresh = make_engine(), rows(make_engine())
    store = CheckpointStore(tmp_path)
    with store.writer(SCHEMA, PLACEMENT) as writer:
        step(engine, [[0, 0, 1, 1, 3], [0, 1]])
        save(engine, writer, "priority")
        saved = rows(engine)
        step(engine, [[0, 1, 2, 3], [0, 1, 2]])
        shard = make_shards(engine, store, SCHEMA, PLACEMENT)[0]
        shard.discard()
        restored = shard.restore()
    got = rows(engine)[0]
    assert got[:2].tobytes() == saved[0][:2].tobytes()
    assert got[2:4].tobytes() == fresh[0][2:4].tobytes()
    assert restored.rows["a"] == 2
    assert restored.reset["a"] == 2


def test_v16_trackers_are_clear_after_an_exact_restore(setup: Setup) -> None:
    engine = setup.engine
    step(engine, [[0, 1, 2, 8], [2, 6]])
    ranges = [row_range for shard in setup.shards for row_range in shard.ranges]
    restore_rows(engine, ranges, setup.store.latest("exact").plan(), dirty="clear")
    for table, got in enumerate(rows(engine)):
        assert got.tobytes() == setup.base[table].tobytes()
        assert not engine.dirty(table).any()
        assert not engine.counts(table).any()
        assert len(engine.sampled_rows(table)) == 0


def test_memory_stays_where_it_is(setup: Setup) -> None:
    before = [setup.engine.weight(table).ctypes.data for table in range(2)]
    setup.shards[0].discard()
    setup.shards[0].restore()
    assert [setup.engine.weight(table).ctypes.data for table in range(2)] == before


def test_v20_damage_in_one_table_applies_nothing_to_any(setup: Setup, tmp_path: Path) -> None:
    step(setup.engine, [[4, 5], [3, 4]])
    before = rows(setup.engine)
    (segment,) = {planned.record.name for planned in setup.shards[1].plan().segments}
    path = tmp_path / "shards" / "1" / "segments" / segment
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(NoCheckpointError, match=segment):
        setup.shards[1].restore()
    ranges = [row_range for shard in setup.shards for row_range in shard.ranges]
    (point,) = setup.store.points()
    with pytest.raises(CorruptionError, match=segment):
        restore_rows(setup.engine, ranges, point.plan(), dirty="clear")
    for got, expected in zip(rows(setup.engine), before, strict=True):
        assert got.tobytes() == expected.tobytes()


def test_v22_damage_after_the_check_says_that_rows_are_half_restored(setup: Setup, tmp_path: Path) -> None:
    step(setup.engine, [[4, 5], [3, 4]])
    save(setup.engine, setup.writer, "delta")
    plan = setup.shards[1].plan()
    plan.verify()
    path = tmp_path / "shards" / "1" / "segments" / plan.segments[-1].record.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptionError, match=f"{path.name}.*half restored.*again"):
        setup.shards[1].restore(plan)
    restored = setup.shards[1].restore()
    assert path.name in " ".join(restored.skipped)
    assert restored.broken
    for table, got in enumerate(rows(setup.engine)):
        assert got[lost(table, 1)].tobytes() == setup.base[table][lost(table, 1)].tobytes()


def test_row_range_length() -> None:
    assert len(RowRange(name="a", table=0, begin=3, end=8)) == 5
    assert len(Shard(0, make_engine(), [], CheckpointStore("nowhere"))) == 0
