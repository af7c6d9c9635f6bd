"""Files that change, snapshots that run and readers that fail while a shard is restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shard_cases import Setup, lost, rows, save, step
from store_cases import flip, place

from cpr_native._native import Selection, crc32c, load_stored_rows
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError, SnapshotInProgress


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.writer.close()


@pytest.mark.parametrize("where", ["a.rows", "a.weight", "b.state", "cut"])
def test_v22_damage_after_the_check_says_that_rows_are_half_restored(
    setup: Setup, tmp_path: Path, where: str
) -> None:
    step(setup.engine, [[4, 5], [3, 4]])
    save(setup.engine, setup.writer, "delta")
    plan = setup.shards[1].plan()
    plan.verify()
    path = tmp_path / "shards" / "1" / "segments" / plan.segments[-1].record.name
    now = rows(setup.engine)
    if where == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, place(path, where))
    with pytest.raises(CorruptionError, match=f"{path.name}.*half restored.*again"):
        setup.shards[1].restore(plan)
    for table, got in enumerate(rows(setup.engine)):
        assert got[~lost(table, 1)].tobytes() == now[table][~lost(table, 1)].tobytes()
    restored = setup.shards[1].restore()
    assert path.name in " ".join(restored.skipped)
    assert restored.broken
    for table, got in enumerate(rows(setup.engine)):
        assert got[lost(table, 1)].tobytes() == setup.base[table][lost(table, 1)].tobytes()


def test_dirty_bits_outlive_an_interrupted_restore(setup: Setup, tmp_path: Path) -> None:
    """The next delta still takes rows that were dirty before it, whatever became of the restore."""
    step(setup.engine, [[4, 5, 9], [3, 4]])
    dirty = [setup.engine.dirty(table).tolist() for table in range(2)]
    plan = setup.shards[1].plan()
    plan.verify()
    path = tmp_path / "shards" / "1" / "segments" / plan.segments[0].record.name
    flip(path, place(path, "b.weight"))
    with pytest.raises(CorruptionError, match="half restored"):
        setup.shards[1].restore(plan)
    assert [setup.engine.dirty(table).tolist() for table in range(2)] == dirty


def test_a_restore_beside_a_snapshot_is_refused_with_nothing_changed(setup: Setup) -> None:
    step(setup.engine, [[4, 5], [3]])
    before = rows(setup.engine)
    dirty = [setup.engine.dirty(table).tolist() for table in range(2)]
    snapshot = setup.engine.begin([Selection.none(), Selection.none()], clears_dirty=False)
    for restart in (False, True):
        with pytest.raises(SnapshotInProgress):
            setup.shards[1].restore(restart=restart)
    assert snapshot.status != "failed"
    snapshot.abort()
    assert [setup.engine.dirty(table).tolist() for table in range(2)] == dirty
    for got, expected in zip(rows(setup.engine), before, strict=True):
        assert got.tobytes() == expected.tobytes()


def test_stored_rows_are_loaded_from_a_file_that_fits(setup: Setup, tmp_path: Path) -> None:
    """What the native reader refuses by itself."""
    path = tmp_path / "rows"
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    path.write_bytes(np.array([5, 4, 7]).tobytes() + weight.tobytes() + np.ones(3, np.float32).tobytes())
    before = rows(setup.engine)
    with path.open("rb") as file:
        fd = file.fileno()

        def load(table: int = 0, count: int = 3, last: int = 8, threads: int = 2) -> tuple[int, int, int]:
            offsets, span = (0, 24, 72), (4, last)
            stored = (setup.engine, table, fd, str(path), "mine", count, offsets, span, True)
            (crcs,) = load_stored_rows([stored], threads)
            return crcs

        for error, message, arguments in (
            (IndexError, r"rows: mine: rows: expected rows of \[4, 7\), got 4..7", {"last": 7}),
            (IndexError, "expected 0 <= table < 2, got 2", {"table": 2}),
            (OSError, "Input/output error", {"count": 5000}),
            (ValueError, "rows: expected at least 0", {"count": -1}),
            (ValueError, "threads: expected 1..", {"threads": 0}),
        ):
            with pytest.raises(error, match=message):
                load(**arguments)
            for got, expected in zip(rows(setup.engine), before, strict=True):
                assert got.tobytes() == expected.tobytes()
        crcs = load()
    assert setup.engine.weight(0)[[5, 4, 7]].tobytes() == weight.tobytes()
    assert np.flatnonzero(setup.engine.dirty(0)).tolist() == [4, 5, 7]
    assert crcs[1] == crc32c(describe(weight))
