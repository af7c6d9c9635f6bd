"""The native side of writing and reading segments."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest
from store_cases import flip

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.segment_reader import read_tensors

DATA = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)  # some slices and a byte


def create(path: Path) -> _native.SegmentFile:
    pieces = [describe(DATA[:5]), describe(DATA[5:5]), describe(DATA[5:])]
    large = _native.SegmentTensor("large", "uint8", DATA.shape, pieces)
    small = _native.SegmentTensor("small", "uint8", (3,), [describe(DATA[:3])])
    return _native.SegmentFile(str(path), [large, small], {"of": "a test"})


def test_the_checksum_is_that_of_the_file(tmp_path: Path) -> None:
    file = create(tmp_path / "a")
    file.sync()
    written = np.frombuffer((tmp_path / "a").read_bytes(), np.uint8)
    assert (file.size, file.crc) == (written.size, _native.crc32c(describe(written)))
    record = SegmentRecord(name="a", size=file.size, crc=file.crc)
    tensors = read_tensors(tmp_path / "a", record)
    assert tensors["large"].tobytes() == DATA.tobytes()
    assert tensors["small"].tobytes() == DATA[:3].tobytes()
    for at in (0, 100, file.size // 2, file.size - 1):
        flip(tmp_path / "a", at)
        with pytest.raises(CorruptionError):
            read_tensors(tmp_path / "a", record)
        flip(tmp_path / "a", at)


def test_a_file_is_synced_once_or_removed(tmp_path: Path) -> None:
    file = create(tmp_path / "a")
    file.sync()
    with pytest.raises(ValueError, match=r"not synced yet, got .*a"):
        file.sync()
    del file
    dropped = create(tmp_path / "b")
    assert (tmp_path / "b").exists()
    del dropped
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_forked_child_leaves_its_parents_file(tmp_path: Path) -> None:
    file = create(tmp_path / "a")
    child = os.fork()
    if child == 0:
        del file
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file.sync()
    assert (tmp_path / "a").stat().st_size == file.size


def test_sections_are_read_and_errors_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA.tobytes())
    memory = np.zeros(2_000_000, np.uint8)
    with (tmp_path / "a").open("rb") as file:
        fd = file.fileno()
        crcs = _native.read_sections(
            [
                (fd, 7, memory.size, describe(memory)),
                (fd, 7, memory.size, None),
                (fd, DATA.size - 10, 11, None),
                (fd, DATA.size, 0, None),
                (10**6, 0, 1, None),
            ],
            3,
        )
        assert memory.tobytes() == DATA[7 : 7 + memory.size].tobytes()
        assert crcs == [_native.crc32c(describe(memory))] * 2 + [-errno.EIO, 0, -errno.EBADF]
        with pytest.raises(ValueError, match="section at 7: expected memory of 5 bytes, got 2000000"):
            _native.read_sections([(fd, 7, 5, describe(memory))], 1)
        with pytest.raises(ValueError, match="threads: expected 1"):
            _native.read_sections([], 0)
        assert _native.read_sections([], 1) == []
