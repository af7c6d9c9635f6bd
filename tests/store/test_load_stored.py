"""Stored rows on their way to engines: many files and collections in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import Engine, trained

from cpr_native._native import Selection, SnapshotInProgress, crc32c, load_stored_rows
from cpr_native._tensor import describe

BIG, SMALL = 70_000, 40


def stored(engine: Engine, table: int, file: Any, rows: Any, *, dirty: bool = False) -> tuple[Any, ...]:
    """Append rows whose weights are their ids and whose state is 1; return what the native call takes."""
    at = file.seek(0, 2)
    ids = np.array(rows, np.int64)
    weight = np.repeat(ids.astype(np.float32), engine.dim)
    file.write(ids.tobytes() + weight.tobytes() + np.ones(len(ids), np.float32).tobytes())
    file.flush()
    offsets = (at, at + ids.nbytes, at + ids.nbytes + weight.nbytes)
    span = (0, engine.rows[table])
    return engine.native, table, file.fileno(), file.name, f"part {at}", len(ids), offsets, span, dirty


def tracked(engine: Engine) -> list[bytes]:
    return [array.tobytes() for t in range(2) for array in engine.rows_of(t) if array is not None]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_parts_of_several_tables_and_collections(tmp_path: Path, threads: int) -> None:
    one, other = trained(rows=(BIG, SMALL)), trained(rows=(SMALL, SMALL))
    shuffled = np.random.default_rng(0).permutation(np.arange(0, BIG, 2))
    with (tmp_path / "rows").open("w+b") as file:
        parts = [
            stored(one, 0, file, shuffled),
            stored(other, 1, file, range(10, 30), dirty=True),
            stored(one, 1, file, []),
            stored(one, 0, file, np.arange(1, BIG, 2), dirty=True),
        ]
        crcs = load_stored_rows(parts, threads)
        data = Path(file.name).read_bytes()
    for part, found in zip(parts, crcs, strict=True):
        ids, weight, state = part[6]
        ends = (weight, state, state + 4 * part[5])
        expected = [
            crc32c(describe(np.frombuffer(data[begin:end], np.uint8))) if end > begin else 0
            for begin, end in zip((ids, weight, state), ends, strict=True)
        ]
        assert list(found) == expected
    assert np.array_equal(one.native.weight(0)[:, 0], np.arange(BIG))
    assert np.array_equal(one.native.weight(0)[:, 7], np.arange(BIG))
    assert np.array_equal(one.native.state(0), np.ones(BIG))
    assert np.array_equal(one.native.dirty(0), np.arange(BIG) % 2 == 1)
    assert one.native.num_dirty(0) == BIG // 2
    assert not one.native.counts(0).any()
    assert np.array_equal(other.native.weight(1)[10:30, 3], np.arange(10, 30))
    assert np.flatnonzero(other.native.dirty(1)[10:30]).tolist() == list(range(20))


def test_a_foreign_row_names_its_file_and_owner(tmp_path: Path) -> None:
    one, other = trained(), trained()
    with (tmp_path / "rows").open("w+b") as file:
        parts = [stored(one, 0, file, [3, 4]), stored(other, 1, file, [39, 40])]
        match = rf"{file.name}: part 88: rows: expected rows of \[0, 40\), got 39..40"
        with pytest.raises(IndexError, match=match):
            load_stored_rows(parts, 1)


def test_a_snapshot_of_one_collection_keeps_all_from_being_written(tmp_path: Path) -> None:
    one, other = trained(), trained()
    before = tracked(one), tracked(other)
    snapshot = other.begin(Selection.none(), Selection.none(), clears_dirty=False)
    with (tmp_path / "rows").open("w+b") as file:
        parts = [stored(one, 0, file, [3, 4]), stored(other, 0, file, [3, 4])]
        with pytest.raises(SnapshotInProgress):
            load_stored_rows(parts, 2)
        assert (tracked(one), tracked(other)) == before
        snapshot.abort()
        load_stored_rows(parts, 2)
    assert one.native.weight(0)[3, 0] == other.native.weight(0)[3, 0] == 3
