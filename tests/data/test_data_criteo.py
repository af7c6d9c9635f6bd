from __future__ import annotations

import gzip
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpr_native.data import ClickBatch, CriteoReader, count_lines, split_lines

SIZES = tuple(range(5, 31))


def line(index: int) -> bytes:
    rng = np.random.default_rng(index)
    integers = [b"" if rng.random() < 0.3 else str(int(rng.integers(-3, 10_000))).encode() for _ in range(13)]
    hashes = [b"" if rng.random() < 0.2 else b"%08x" % int(rng.integers(0, 2**32)) for _ in range(26)]
    return b"\t".join([b"%d" % (index % 3 == 0), *integers, *hashes])


def slow_sample(text: bytes) -> tuple[float, list[float], list[int]]:
    fields = text.split(b"\t")
    dense = [math.log1p(max(int(field or b"0"), 0)) for field in fields[1:14]]
    ids = [
        1 + int(field, 16) % (size - 1) if field else 0
        for field, size in zip(fields[14:], SIZES, strict=True)
    ]
    return float(fields[0]), dense, ids


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(lines: list[bytes], *, end: bytes = b"\n", packed: bool = False) -> Path:
        path = tmp_path / "train.txt"
        text = end.join(lines) + end
        path.write_bytes(gzip.compress(text) if packed else text)
        return path

    return write_file


def reader(path: Path, **options: Any) -> CriteoReader:
    return CriteoReader(path, **{"batch_size": 16, "table_sizes": SIZES, **options})


def assert_samples(batches: list[ClickBatch], lines: list[bytes]) -> None:
    expected = [slow_sample(text) for text in lines]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [label for label, _, _ in expected]
    dense = torch.cat([batch.dense for batch in batches])
    torch.testing.assert_close(dense, torch.tensor([row for _, row, _ in expected]), rtol=2e-7, atol=0.0)
    ids = torch.cat([batch.ids.view(26, -1) for batch in batches], dim=1)
    assert ids.T.tolist() == [row for _, _, row in expected]


def assert_same(left: list[ClickBatch], right: list[ClickBatch]) -> None:
    assert len(left) == len(right)
    for mine, other in zip(left, right, strict=True):
        for name in ("dense", "ids", "offsets", "labels"):
            assert torch.equal(getattr(mine, name), getattr(other, name))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_samples_equal_a_plain_parser(write: Callable[..., Path], packed: bool, end: bytes) -> None:
    lines = [line(index) for index in range(100)]
    batches = list(reader(write(lines, end=end, packed=packed)))
    assert [len(batch) for batch in batches] == [16] * 6 + [4]
    assert_samples(batches, lines)


def test_batches_have_the_layout_of_the_collection(write: Callable[..., Path]) -> None:
    batch = next(iter(reader(write([line(index) for index in range(16)]))))
    assert (batch.dense.shape, batch.dense.dtype) == ((16, 13), torch.float32)
    assert (batch.ids.shape, batch.ids.dtype) == ((26 * 16,), torch.int64)
    assert torch.equal(batch.offsets, torch.arange(26 * 16 + 1))
    assert (batch.labels.shape, batch.labels.dtype) == ((16,), torch.float32)


def test_missing_and_negative_values(write: Callable[..., Path]) -> None:
    fields = [b"1", b"-3", b"", b"7", *[b""] * 10, b"", b"0", b"FFFFFFFF", *[b""] * 23]
    (batch,) = reader(write([b"\t".join(fields)]))
    assert batch.dense[0].tolist() == [0.0, 0.0, np.float32(math.log(8.0)), *[0.0] * 10]
    assert batch.ids[:4].tolist() == [0, 1, 1 + (2**32 - 1) % 6, 0]


def test_last_line_without_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(line(1) + b"\n" + line(2))
    assert count_lines(path) == 2
    assert_samples(list(reader(path)), [line(1), line(2)])


def test_range_and_drop_last(write: Callable[..., Path]) -> None:
    lines = [line(index) for index in range(100)]
    path = write(lines, packed=True)
    assert_samples(list(reader(path, begin=30, end=63)), lines[30:63])
    assert_samples(list(reader(path, begin=30, end=63, drop_last=True)), lines[30:62])


def test_split_is_by_line(write: Callable[..., Path]) -> None:
    path = write([line(index) for index in range(101)])
    assert split_lines(path) == ((0, 90), (90, 101))
    with pytest.raises(ValueError, match="too few"):
        split_lines(path, 0.001)


@pytest.mark.parametrize("packed", [False, True])
def test_resume_is_bit_exact(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr("cpr_native.data._lines.BLOCK_BYTES", 1000)
    lines = [line(index) for index in range(100)]
    lines[37] = b"damaged"
    path = write(lines, packed=packed)
    options = {"begin": 5, "end": 90, "on_error": "skip"}
    first = reader(path, **options)
    batches, states = [], [first.state_dict()]
    for batch in first:
        batches.append(batch)
        states.append(first.state_dict())
    for done, state in enumerate(states):
        second = reader(path, **options)
        second.load_state_dict(state)
        assert_same(list(second), batches[done:])
        assert second.damaged == 1
        assert second.state_dict() == first.state_dict()
    assert_same(list(first), batches)


def test_the_first_state_of_a_late_begin_resumes(write: Callable[..., Path]) -> None:
    path = write([line(index) for index in range(50)])
    first, second = reader(path, begin=20), reader(path, begin=20)
    second.load_state_dict(first.state_dict())
    assert_same(list(second), list(first))


def test_small_blocks_give_the_same_batches(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(index) for index in range(60)]
    path = write(lines)
    for size in (1, 97, 333):
        monkeypatch.setattr("cpr_native.data._lines.BLOCK_BYTES", size)
        assert_samples(list(reader(path, begin=3)), lines[3:])


def damaged(field: int, value: bytes) -> bytes:
    fields = line(1).split(b"\t")
    fields[field] = value
    return b"\t".join(fields)


DAMAGE = [
    (b"", "expected 40 tab-separated fields, got 1"),
    (line(1) + b"\t", "expected 40 tab-separated fields, got 41"),
    (damaged(0, b"2"), "label must be 0 or 1, got '2'"),
    (damaged(0, b""), "label must be 0 or 1, got ''"),
    (damaged(1, b"-"), "I1 must be an integer of up to 18 digits, got '-'"),
    (damaged(13, b"1.5"), r"I13 must be an integer of up to 18 digits, got '1\.5'"),
    (damaged(3, b"1" * 19), "I3 must be an integer of up to 18 digits, got '1111111111111111111'"),
    (damaged(14, b"0123456g"), "C1 must be up to 8 hexadecimal digits, got '0123456g'"),
    (damaged(39, b"012345678"), "C26 must be up to 8 hexadecimal digits, got '012345678'"),
    (damaged(14, b"\xff"), r"C1 must be up to 8 hexadecimal digits, got '\\\\xff'"),
]


@pytest.mark.parametrize(("text", "reason"), DAMAGE)
def test_damaged_line_raises_with_its_number(write: Callable[..., Path], text: bytes, reason: str) -> None:
    path = write([line(0), text, line(2)])
    with pytest.raises(ValueError, match=f"train.txt:2: {reason}$"):
        list(reader(path))


def test_damaged_lines_are_skipped_and_counted(write: Callable[..., Path]) -> None:
    good = [line(index) for index in range(40)]
    lines = [*good[:20], *(text for text, _ in DAMAGE), *good[20:]]
    source = reader(write(lines), on_error="skip")
    assert_samples(list(source), good)
    assert source.damaged == len(DAMAGE)
    assert len(source.damaged_examples) == len(DAMAGE)
    assert source.damaged_examples[0].endswith("train.txt:21: expected 40 tab-separated fields, got 1")


def test_damage_outside_the_range_is_not_seen(write: Callable[..., Path]) -> None:
    source = reader(write([b"x", line(1), line(2), b"y"]), begin=1, end=3)
    assert_samples(list(source), [line(1), line(2)])
    assert source.damaged == 0


def test_overlong_line_is_damaged_and_memory_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_native.data._lines.BLOCK_BYTES", 1 << 16)
    path = tmp_path / "train.txt"
    tail = [line(index) for index in range(1, 40)]
    path.write_bytes(gzip.compress(line(0) + b"\n" + b"0" * (1 << 25) + b"\n" + b"\n".join(tail)))
    source = reader(path, on_error="skip")
    tracemalloc.start()
    batches = list(source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 23
    assert_samples(batches, [line(0), *tail])
    assert source.damaged_examples == (f"{path}:2: expected 40 tab-separated fields, got 1",)
    resumed = reader(path, on_error="skip")
    half = iter(source)
    next(half)
    resumed.load_state_dict(source.state_dict())
    assert_same(list(resumed), batches[1:])


@pytest.mark.parametrize("lines", [[], [b"x"], [b"x", b"y"]])
def test_file_without_a_valid_line_is_an_error(write: Callable[..., Path], lines: list[bytes]) -> None:
    path = write(lines) if lines else write([])
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=r"train\.txt: no valid line"):
        list(reader(path, on_error="skip"))


def test_truncated_gzip_names_file_and_line(write: Callable[..., Path]) -> None:
    path = write([line(index) for index in range(50)], packed=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"gzip stream is damaged after line 0.*train\.txt"):
        list(reader(path, on_error="skip"))


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        reader(tmp_path / "absent.txt")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        reader(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"begin": -1}, "begin and end"),
        ({"begin": 4, "end": 3}, "begin and end"),
        ({"on_error": "ignore"}, "on_error"),
        ({"table_sizes": SIZES[1:]}, "26 entries"),
        ({"table_sizes": (1, *SIZES[1:])}, r"table_sizes\[0\]"),
    ],
)
def test_wrong_options_are_refused(write: Callable[..., Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(write([line(0)]), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"line": 11}, "line 11 is outside 2 .. 10"),
        ({"line": 1}, "line 1 is outside 2 .. 10"),
        ({"line": "2"}, r"state\['line'\]"),
        ({"samples": -1}, r"state\['samples'\]"),
        ({"file_bytes": 7}, "file of 7 bytes"),
        ({"extra": 1}, "keys"),
    ],
)
def test_wrong_state_changes_nothing(
    write: Callable[..., Path], change: dict[str, Any], message: str
) -> None:
    source = reader(write([line(index) for index in range(12)]), begin=2, end=10)
    before = source.state_dict()
    with pytest.raises(ValueError, match=message):
        source.load_state_dict({**before, **change})
    assert source.state_dict() == before
    assert sum(len(batch) for batch in source) == 8
