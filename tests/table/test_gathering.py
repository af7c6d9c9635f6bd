"""A snapshot read shard by shard, as what segments are made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, trained

from cpr_native._native import GatheredRows, SegmentFile, Selection, Snapshot
from cpr_native.errors import CprError

BLOCKS = (1000, 10)
SHARDS = 4


def snapshot_of(engine: Engine) -> Snapshot:
    return engine.begin(Selection.all(), Selection.all(), clears_dirty=True, shard_rows=list(BLOCKS))


def shard_rows(shard: int) -> int:
    return min(3000, 1000 * (shard + 1)) - min(3000, 1000 * shard) + min(10, 40 - 10 * shard)


def header_of(path: Path, gathered: GatheredRows) -> dict[str, object]:
    SegmentFile(str(path), gathered.tensors(["a", "b"]), {}).sync()
    data = path.read_bytes()
    header: dict[str, object] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    del header["__metadata__"]
    return header


def test_a_shard_is_handed_out_as_soon_as_it_has_all_its_rows() -> None:
    engine = trained(rows=(3000, 40))
    lookups = [engine.native.counts(table).sum() for table in range(2)]
    snapshot = snapshot_of(engine)
    found = list(snapshot.gather(1 << 30, [shard_rows(shard) for shard in range(SHARDS)]))
    assert [gathered.shard for gathered in found] == [0, 1, 2, 3]
    assert [gathered.rows for gathered in found] == [{0: 1000, 1: 10}] * 3 + [{1: 10}]
    # 8 columns of float32, a state, an id and a count a row
    assert [gathered.nbytes for gathered in found] == [1010 * 48] * 3 + [10 * 48]
    assert sum(gathered.lookups for gathered in found) == sum(lookups)
    for gathered in found:
        gathered.close()
    snapshot.commit()


def test_what_is_gathered_is_bounded_and_no_row_is_missed() -> None:
    engine = Engine(rows=(20_000, 40), max_staging_bytes=1 << 18)
    snapshot = engine.begin(Selection.all(), Selection.all(), clears_dirty=True, shard_rows=[5000, 10])
    rows = [0, 0]
    sizes = []
    for gathered in snapshot.gather(100_000, [-1] * SHARDS):
        sizes.append(gathered.nbytes)
        for table, count in gathered.rows.items():
            rows[table] += count
        gathered.close()
    assert rows == [20_000, 40]
    assert len(sizes) > SHARDS
    assert max(sizes) <= 100_000 + (1 << 16)  # and a chunk, a fourth of the staging memory
    snapshot.commit()


def test_tensors_come_by_the_size_of_their_items_and_hold_the_rows(tmp_path: Path) -> None:
    engine = trained(rows=(3000, 40))
    weight, state, _ = engine.rows_of(1)
    counts = engine.native.counts(1).copy()
    snapshot = snapshot_of(engine)
    last = list(snapshot.gather(1 << 30, [-1] * SHARDS))[-1]
    assert last.shard == 3
    assert header_of(tmp_path / "s", last) == {
        "b.rows": {"dtype": "I64", "shape": [10], "data_offsets": [0, 80]},
        "b.weight": {"dtype": "F32", "shape": [10, 8], "data_offsets": [80, 400]},
        "b.state": {"dtype": "F32", "shape": [10], "data_offsets": [400, 440]},
        "b.count": {"dtype": "U32", "shape": [10], "data_offsets": [440, 480]},
    }
    assert state is not None
    expected = [np.arange(30, 40), weight[30:], state[30:], counts[30:].astype(np.uint32)]
    assert (tmp_path / "s").read_bytes()[-480:] == b"".join(array.tobytes() for array in expected)
    snapshot.commit()


def test_wrong_arguments_are_refused() -> None:
    engine = trained(rows=(3000, 40))
    snapshot = snapshot_of(engine)
    with pytest.raises(ValueError, match="max_bytes: expected at least 1, got 0"):
        snapshot.gather(0, [-1])
    with pytest.raises(ValueError, match="shard_rows: expected one count a shard"):
        snapshot.gather(1, [])
    with pytest.raises(CprError, match="expected chunks of 2 shards"):
        list(snapshot.gather(1 << 30, [-1, -1]))
    snapshot.abort()
    assert engine.native.dirty(0).any()


def test_closed_rows_and_missing_names_are_refused() -> None:
    snapshot = snapshot_of(trained(rows=(3000, 40)))
    gathered = next(snapshot.gather(1 << 30, [-1] * SHARDS))
    with pytest.raises(ValueError, match="at least 2, got 1"):
        gathered.tensors(["a"])
    gathered.close()
    with pytest.raises(ValueError, match=r"after close\(\)"):
        gathered.tensors(["a", "b"])


def test_an_aborted_snapshot_is_not_gathered_further() -> None:
    engine = trained(rows=(3000, 40))
    snapshot = snapshot_of(engine)
    gathering = snapshot.gather(1 << 30, [-1] * SHARDS)
    snapshot.abort()
    with pytest.raises(CprError, match="aborted"):
        next(gathering)
