"""Stored rows on their way to tables on a device: the rows and words of a CPU collection that takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_saves import Pair

from cpr_native._native import CprError, DeviceCollection, Selection, SnapshotInProgress, load_stored_rows

BIG, SMALL = 20_000, 41


class Files:
    """Rows in an open file, as segments have them, for both engines of a pair."""

    def __init__(self, pair: Pair, file: Any) -> None:
        self.pair, self.file = pair, file
        self.rng = np.random.default_rng(0)

    def part(self, table: int, rows: Any, *, dirty: bool = False) -> list[tuple[Any, ...]]:
        """Append random rows; return what the native call takes for the CPU and for the device."""
        native, at = self.pair.twin.native, self.file.seek(0, 2)
        ids = np.array(rows, np.int64)
        weight = self.rng.random((len(ids), self.pair.twin.dim)).astype(native.weight(table).dtype)
        state = self.rng.random((len(ids), native.state_columns(table)), np.float32)
        self.file.write(ids.tobytes() + weight.tobytes() + state.tobytes())
        self.file.flush()
        offsets = (at, at + ids.nbytes, at + ids.nbytes + weight.nbytes)
        offset = self.pair.twin.spec.get("row_offset", 0)
        span = (offset, offset + self.pair.rows[table])
        rest = (table, self.file.fileno(), self.file.name, f"part {at}", len(ids), offsets, span, dirty)
        return [(native, *rest), ((self.pair.device.native, 0), *rest)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("optimizer", "dtype", "dim"), [("sgd", "float32", 8), ("adam", "float32", 5), ("adagrad", "float16", 3)]
)
def test_rows_are_those_of_the_file(
    tmp_path: Path, threads: int, optimizer: str, dtype: str, dim: int
) -> None:
    spec = {"dtype": dtype, "row_offset": 7}
    pair = Pair((BIG, SMALL), optimizer=optimizer, dim=dim, spec=spec, max_staging_bytes=1 << 17)
    pair.random_step(np.random.default_rng(1), 500)
    shuffled = np.random.default_rng(0).permutation(np.arange(0, BIG, 2)) + 7
    with (tmp_path / "rows").open("w+b") as file:
        files = Files(pair, file)
        parts = [
            files.part(0, shuffled),
            files.part(1, range(10 + 7, 30 + 7), dirty=True),
            files.part(1, []),
            files.part(0, np.arange(1, BIG, 2) + 7, dirty=True),
        ]
        for _ in range(2):  # once more into memory that has been used
            found = load_stored_rows([each for part in parts for each in part], threads)
            assert found[::2] == found[1::2]
    pair.assert_totals()


def test_a_foreign_row_is_refused(tmp_path: Path) -> None:
    pair = Pair((BIG, SMALL))
    with (tmp_path / "rows").open("w+b") as file:
        (_, part) = Files(pair, file).part(1, [39, 41])
        with pytest.raises(IndexError, match=r"part 0: rows: expected rows of \[0, 41\), got 39..41"):
            load_stored_rows([part], 1)
    pair.assert_totals()


def test_a_snapshot_keeps_rows_from_being_written(tmp_path: Path) -> None:
    pair = Pair((BIG, SMALL))
    snapshot = pair.device.native.begin([Selection.none()] * 2, clears_dirty=False)
    with (tmp_path / "rows").open("w+b") as file:
        parts = Files(pair, file).part(0, [3, 4])
        with pytest.raises(SnapshotInProgress, match="load_rows"):
            load_stored_rows(parts, 2)
        pair.assert_totals()
        snapshot.abort()
        load_stored_rows(parts, 2)
    pair.assert_totals()


def test_snapshots_follow_in_the_same_memory(tmp_path: Path) -> None:
    pair = Pair((BIG, SMALL), max_staging_bytes=1 << 17)
    rng = np.random.default_rng(2)
    with (tmp_path / "rows").open("w+b") as file:
        files = Files(pair, file)
        for _ in range(2):
            load_stored_rows(files.part(0, rng.permutation(BIG)[:5000]), 2)
            with pair.device.native.begin([Selection.all()] * 2, clears_dirty=True) as snapshot:
                weights = np.concatenate([chunk.weight.copy() for chunk in snapshot if chunk.table == 0])
                assert len(weights) == BIG
                snapshot.commit()
            np.testing.assert_array_equal(np.sort(weights, 0), np.sort(pair.twin.native.weight(0), 0))


def test_memory_is_needed_first(tmp_path: Path) -> None:
    pair = Pair((BIG, SMALL))
    bare = DeviceCollection(
        pair.device.table_specs(), [0, 1], device=pair.device.device, optimizer="sgd", learning_rate=0.1
    )
    with (tmp_path / "rows").open("w+b") as file:
        (_, part) = Files(pair, file).part(0, [3])
        with pytest.raises(CprError, match="load_rows: expected bind_records"):
            load_stored_rows([((bare, 0), *part[1:])], 1)
