"""Tables in shared memory: what a process leaves, the next one finds."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import Engine, drain

from cpr_native._native import CorruptionError, CprError, Region, Selection, Snapshot

AREAS = 64  # offset in the header of where the areas are


def region_of(path: Path, *, discard: bool = False) -> Region:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return Region(fd, str(path), discard=discard)


def engine_in(region: Region | None, **options: Any) -> Engine:
    return Engine(rows=(3000, 70), threads=1, settings={"region": region}, **options)


def steps(engine: Engine, seed: int, number: int = 6) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(number):
        engine.random_step(rng, 200)


def all_of(engine: Engine) -> list[Any]:
    return [engine.rows_of(table) for table in range(2)]


def assert_same(left: list[Any], right: list[Any]) -> None:
    for ours, theirs in zip(left, right, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()


OPTIONS: dict[str, dict[str, Any]] = {
    "adagrad": {"optimizer": "adagrad", "spec": {"ssu": True}},
    "row_wise": {"spec": {"ssu": True, "drift": True, "dirty": True, "mfu": True}},
    "half": {"spec": {"dtype": "bfloat16"}},
    "adam": {"optimizer": "adam", "spec": {"ssu": True, "ssu_period": 1}},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_next_process_finds_rows_state_and_trackers(tmp_path: Path, name: str) -> None:
    region = region_of(tmp_path / "memory")
    assert (region.attached, region.reason, region.sequence) == (False, "", 0)
    engine, private = engine_in(region, **OPTIONS[name]), engine_in(None, **OPTIONS[name])
    for each in (engine, private):
        steps(each, 1)
    assert_same(all_of(engine), all_of(private))
    region.commit(b"noted", [])
    step = engine.native.step
    del engine, region
    region = region_of(tmp_path / "memory")
    assert region.attached
    assert region.read() == (b"noted", [])
    engine = engine_in(region, **OPTIONS[name])
    engine.native.step = step
    engine.native.reattach()
    assert [engine.native.num_dirty(t) for t in range(2)] == [private.native.num_dirty(t) for t in range(2)]
    for table in range(2):
        assert np.array_equal(engine.native.count_histogram(table), private.native.count_histogram(table))
        assert np.array_equal(engine.native.sampled_rows(table), private.native.sampled_rows(table))
        assert engine.native.doubtful_rows(table) is not None
        assert len(engine.native.doubtful_rows(table)) == 0  # type: ignore[arg-type]
    assert_same(all_of(engine), all_of(private))
    for each in (engine, private):
        steps(each, 2)
    assert_same(all_of(engine), all_of(private))


def in_flight(engine: Engine, kind: str, *, walk: bool) -> Snapshot:
    selection = {"all": Selection.all(), "dirty": Selection.dirty(), "mfu": Selection.most_used(300)}[kind]
    snapshot = engine.begin(selection, selection, clears_dirty=kind != "mfu", walk=walk)
    steps(engine, 3, 2)  # some rows are settled by updates
    if walk:
        drain(snapshot, 2)
    return snapshot


@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("kind", ["all", "dirty", "mfu"])
def test_what_a_snapshot_in_flight_had_taken_is_given_back(tmp_path: Path, kind: str, walk: bool) -> None:
    program = f"""
import os, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from table.test_region import engine_in, in_flight, region_of, steps
region = region_of(Path({str(tmp_path / "memory")!r}))
engine = engine_in(region, spec={{"drift": True, "ssu": True}})
steps(engine, 1)
snapshot = in_flight(engine, {kind!r}, walk={walk})
region.commit(b"", [])
os._exit(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    options: dict[str, Any] = {"spec": {"drift": True, "ssu": True}}
    private = engine_in(None, **options)
    steps(private, 1)
    steps(private, 3, 2)
    engine = engine_in(region_of(tmp_path / "memory"), **options)
    engine.native.step = private.native.step
    engine.native.reattach()
    steps(engine, 4, 1)  # beside the rest of the walk
    steps(private, 4, 1)
    for table in range(2):
        assert np.array_equal(engine.native.weight(table), private.native.weight(table))
        assert np.array_equal(engine.native.dirty(table), private.native.dirty(table))
        assert np.array_equal(engine.native.counts(table), private.native.counts(table))
        drift, expected = engine.native.drift(table), private.native.drift(table)
        np.testing.assert_allclose(drift, expected, rtol=1e-6)
        assert engine.native.num_dirty(table) == private.native.num_dirty(table)
    snapshot = engine.begin(Selection.dirty(), Selection.dirty(), clears_dirty=True)
    rows = [taken.rows for taken in drain(snapshot, 2)]
    snapshot.commit()
    assert [list(found) for found in rows] == [
        list(np.flatnonzero(private.native.dirty(t))) for t in range(2)
    ]


def test_rows_of_a_step_that_was_not_committed_are_in_doubt(tmp_path: Path) -> None:
    region = region_of(tmp_path / "memory")
    engine = engine_in(region)
    steps(engine, 1)
    region.commit(b"", [])
    snapshot = engine.begin(Selection.dirty(), Selection.dirty(), clears_dirty=True)
    drain(snapshot, 2)
    snapshot.commit()
    before = engine.native.counts(0)
    steps(engine, 2, 2)
    touched = [np.flatnonzero(engine.native.dirty(table)) for table in range(2)]
    assert before.sum() == 0
    del engine, region, snapshot
    engine = engine_in(region_of(tmp_path / "memory"))
    engine.native.reattach()
    for table in range(2):
        assert np.array_equal(engine.native.doubtful_rows(table), touched[table])  # type: ignore[arg-type]
        assert np.array_equal(np.flatnonzero(engine.native.dirty(table)), touched[table])


def test_the_last_of_two_slots_counts(tmp_path: Path) -> None:
    region = region_of(tmp_path / "memory")
    engine_in(region)
    values = np.arange(5000, dtype=np.float32)
    for number in range(7):  # the fourth needs larger slots
        size = 10 if number < 3 else 5000
        data = [(values.ctypes.data, (size,), "float32")]
        region.commit(b"%d" % number, data)
        del region
        region = region_of(tmp_path / "memory")
        assert region.sequence == number + 1
        assert region.read() == (b"%d" % number, [values[:size].tobytes()])
    region.invalidate()
    del region
    region = region_of(tmp_path / "memory")
    assert not region.attached
    assert "no step was committed" in region.reason


def patched(path: Path, at: int, data: bytes) -> bytes:
    """Writes `data` there and returns what was."""
    fd = os.open(path, os.O_RDWR)
    before = os.pread(fd, len(data), at)
    os.pwrite(fd, data, at)
    os.close(fd)
    return before


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    region = region_of(path)
    engine = engine_in(region)
    with pytest.raises(OSError, match="in use in this process") as caught:
        region_of(path)
    assert caught.value.errno == errno.EAGAIN
    region.commit(b"", [])
    del engine, region
    with pytest.raises(CprError, match="expected an area of 98240 bytes, got 196480"):
        Engine(rows=(3000, 70), dim=16, settings={"region": region_of(path)})
    for at, changed, error, message in (
        (8, struct.pack("<I", 99), CprError, "version: expected 1, got 99"),
        (AREAS + 3, b"\xff", CorruptionError, "torn header: checksum"),
        (AREAS + 16 * 2048, struct.pack("<Q", 5), CorruptionError, "torn header: ready"),
        (24, b"0" * 16, CorruptionError, "torn header: checksum"),
    ):
        before = patched(path, at, changed)
        with pytest.raises(error, match=message):
            region_of(path)
        patched(path, at, before)
        assert region_of(path).attached
    size = path.stat().st_size
    os.truncate(path, 4 << 20)
    with pytest.raises(CorruptionError, match=f"torn: expected {size} bytes, got {4 << 20}"):
        region_of(path)
    assert not region_of(path, discard=True).attached
    path.write_bytes(b"a file of somebody's")
    with pytest.raises(ValueError, match="another kind of file"):
        region_of(path, discard=True)
    assert path.read_bytes() == b"a file of somebody's"


def test_a_process_killed_while_it_built_its_tables_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    engine_in(region_of(path))
    region = region_of(path)
    assert not region.attached
    assert_same(all_of(engine_in(region)), all_of(engine_in(None)))
