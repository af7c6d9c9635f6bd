from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shard_cases import (
    PLACEMENT,
    ROWS,
    SCHEMA,
    Setup,
    lost,
    make_engine,
    rows,
    save,
    step,
)

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.shard import RowRange, Shard, make_shards, restore_rows
from cpr_native.store import CheckpointStore, Placement


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


def test_row_range_length() -> None:
    assert len(RowRange(name="a", table=0, begin=3, end=8)) == 5
    assert len(Shard(0, make_engine(), [], CheckpointStore("nowhere"))) == 0
