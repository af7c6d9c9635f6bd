from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from store_cases import PLACEMENT, SCHEMA, Model, flip, place, read_rows

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.schema import CollectionSchema
from cpr_native.store.segment import SegmentPart
from cpr_native.store.segment import write_dense as create_dense
from cpr_native.store.segment import write_rows as create_rows
from cpr_native.store.segment_reader import read_dense, read_tensors
from cpr_native.store.stored import stored_rows


def write_rows(
    path: Path, parts: list[SegmentPart], metadata: dict[str, str], schema: CollectionSchema = SCHEMA
) -> SegmentRecord:
    file, record = create_rows(path, parts, schema, metadata)
    file.sync()
    return record


def write_dense(path: Path, dense: dict[str, NDArray[Any] | bytes]) -> tuple[SegmentRecord, tuple[str, ...]]:
    file, record, blobs = create_dense(path, dense)
    file.sync()
    return record, blobs


def some_parts() -> list[SegmentPart]:
    model = Model()
    first = model.parts({"user": [0, 3], "item.id": [1]})
    return [part for part in (*first, *model.parts({"user": [6, 5]})) if part.shard == 0]


def test_safetensors_opens_our_segments(tmp_path: Path) -> None:
    parts = some_parts()
    record = write_rows(tmp_path / "a", parts, {"chain": "shards/0"})
    tensors = load_file(tmp_path / "a")
    assert sorted(tensors) == sorted(
        f"{t}.{n}" for t in ("user", "item.id") for n in ("rows", "weight", "state", "count")
    )
    user = [part for part in parts if part.table == "user"]
    assert tensors["user.rows"].tolist() == [0, 3, 5, 6]
    assert tensors["user.weight"].tobytes() == b"".join(part.weight.tobytes() for part in user)
    assert tensors["user.state"].tobytes() == b"".join(p.state.tobytes() for p in user if p.state is not None)
    assert tensors["user.count"].dtype == np.uint32
    assert record.rows == {"user": 4, "item.id": 1}


def test_layout_and_checksums(tmp_path: Path) -> None:
    record = write_rows(tmp_path / "a", some_parts(), {"chain": "shards/0"})
    data = (tmp_path / "a").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 64 == 0
    assert len(data) == record.size
    assert _native.crc32c(describe(np.frombuffer(data, np.uint8))) == record.crc
    metadata = header.pop("__metadata__")
    assert metadata["chain"] == "shards/0"
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensor = np.frombuffer(data[8 + length + begin : 8 + length + end], np.uint8)
        assert metadata[f"crc32c.{name}"] == f"{_native.crc32c(describe(tensor)):08x}"
        assert begin % {"I64": 8, "F32": 4, "U32": 4}[entry["dtype"]] == 0


def test_rows_come_back(tmp_path: Path) -> None:
    parts = some_parts()
    record = write_rows(tmp_path / "a", parts, {})
    found = read_rows(tmp_path / "a", record, SCHEMA, PLACEMENT, 0)
    counts = read_tensors(tmp_path / "a", record)
    for part in parts:
        rows = found[part.table]
        at = np.searchsorted(rows.rows, part.rows)
        assert rows.weight[at].tobytes() == part.weight.tobytes()
        assert counts[f"{part.table}.count"][at].tolist() == part.count.tolist()
        assert rows.rows.flags.aligned
        assert rows.weight.flags.writeable


def test_more_pieces_than_one_system_call_takes(tmp_path: Path) -> None:
    pieces = [np.full(3, i, np.int32) for i in range(2500)]
    tensor = _native.SegmentTensor("x", "int32", (7500,), [describe(piece) for piece in pieces])
    file = _native.SegmentFile(str(tmp_path / "a"), [tensor], {})
    file.sync()
    read = read_tensors(tmp_path / "a", SegmentRecord(name="a", size=file.size, crc=file.crc))
    assert (read["x"] == np.concatenate(pieces)).all()


def test_dense_state_comes_back(tmp_path: Path) -> None:
    dense = {
        "w": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "flag": np.array([True, False]),
        "scalar": np.array(3, np.int64),
        "half": np.ones(3, np.float16),
        "empty": np.empty((0, 4), np.float32),
        "rng": b"\x00\xffabc",
        "nothing": b"",
        'odd "name"\n\u00e9': np.array([1], ">i4"),
    }
    record, blobs = write_dense(tmp_path / "d", dense)
    read = read_dense(tmp_path / "d", record, blobs)
    assert sorted(read) == sorted(dense)
    for name, value in dense.items():
        got = read[name]
        if isinstance(value, bytes):
            assert got == value
        else:
            assert isinstance(got, np.ndarray)
            assert got.shape == value.shape
            assert (got == value).all()
            assert got.dtype == value.dtype.newbyteorder("=")
    assert sorted(load_file(tmp_path / "d")) == sorted(dense)


def test_dense_refuses_what_the_format_lacks(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'c'.*complex"):
        write_dense(tmp_path / "d", {"c": np.ones(2, np.complex64)})
    with pytest.raises(TypeError, match=r"'l'.*list"):
        write_dense(tmp_path / "d", {"l": [1]})  # type: ignore[dict-item]
    assert not (tmp_path / "d").exists()


def test_an_existing_file_or_link_is_never_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").symlink_to(tmp_path / "elsewhere")
    for name in "ab":
        with pytest.raises(FileExistsError) as caught:
            write_rows(tmp_path / name, some_parts(), {})
        assert caught.value.filename == str(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / "elsewhere").exists()


def test_native_arguments_are_checked(tmp_path: Path) -> None:
    piece = describe(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="expected pieces of 20 bytes in all, got 16"):
        _native.SegmentTensor("x", "float32", (5,), [piece])
    with pytest.raises(ValueError, match="pieces of dtype int32, got float32"):
        _native.SegmentTensor("x", "int32", (4,), [piece])
    with pytest.raises(ValueError, match="complex64"):
        _native.SegmentTensor("x", "complex64", (4,), [])
    with pytest.raises(ValueError, match="negative"):
        _native.SegmentTensor("x", "float32", (-1,), [])
    with pytest.raises(ValueError, match="more bytes"):
        _native.SegmentTensor("x", "float32", (2**40, 2**40), [])
    tensor = _native.SegmentTensor("x", "float32", (4,), [piece])
    for tensors in ([tensor, tensor], [_native.SegmentTensor("__metadata__", "float32", (4,), [piece])]):
        with pytest.raises(ValueError, match="twice or reserved"):
            _native.SegmentFile(str(tmp_path / "a"), tensors, {})
    assert not (tmp_path / "a").exists()


def replaced(part: SegmentPart, **changes: object) -> SegmentPart:
    return SegmentPart(**{**vars(part), **changes})  # type: ignore[arg-type]


def test_parts_are_checked() -> None:
    part = some_parts()[0]
    n = len(part.rows)
    for changes, error, message in (
        ({"table": "none"}, ValueError, "table 'none'"),
        ({"shard": 3}, IndexError, "shard 3 of 3"),
        ({"rows": part.rows.astype(np.int32)}, TypeError, "rows: expected dtype int64, got int32"),
        ({"rows": part.rows + 6}, ValueError, r"rows of shard 0, \[0, 7\), got 6..9"),
        ({"rows": part.rows - 1}, ValueError, "got -1"),
        ({"weight": part.weight[:, :3]}, ValueError, rf"weight: expected shape \({n}, 4\)"),
        ({"weight": part.weight.astype(np.float64)}, TypeError, "weight: expected dtype float32"),
        ({"count": part.count[1:]}, ValueError, "count: expected shape"),
        ({"state": None}, ValueError, rf"state: expected shape \({n},\) under row_wise_adagrad, got None"),
    ):
        with pytest.raises(error, match=message):
            replaced(part, **changes).check(SCHEMA, PLACEMENT)
    stateless = CollectionSchema(
        tables=tuple(replace(table, state_columns=0) for table in SCHEMA.tables), optimizer="sgd"
    )
    replaced(part, state=None).check(stateless, PLACEMENT)
    with pytest.raises(ValueError, match="state: expected shape None under sgd"):
        part.check(stateless, PLACEMENT)


def test_v22_every_damaged_byte_of_a_segment_is_refused(tmp_path: Path) -> None:
    record = write_rows(tmp_path / "a", [p for p in some_parts() if p.table == "item.id"], {})
    for at in range(record.size):
        flip(tmp_path / "a", at)
        with pytest.raises(CorruptionError, match=str(tmp_path / "a")):
            read_tensors(tmp_path / "a", record)
        flip(tmp_path / "a", at)
    read_rows(tmp_path / "a", record, SCHEMA, PLACEMENT, 0)


def crafted(path: Path, header: object, body: bytes = b"", length: int | None = None) -> SegmentRecord:
    """A file with the right CRC whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = (len(text) if length is None else length).to_bytes(8, "little") + text + body
    path.write_bytes(data)
    return SegmentRecord(
        name=path.name, size=len(data), crc=_native.crc32c(describe(np.frombuffer(data, np.uint8)))
    )


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        (b"{}", 2**63, "header: expected at most"),
        (b"{}", 3, "header: expected at most"),
        (b"{}", None, "__metadata__"),
        (b"[]", None, "__metadata__"),
        (b"{", None, "Expecting"),
        (b"\xff\xfe", None, "utf-8"),
        (b'{"__metadata__":{},"__metadata__":{}}', None, "key given twice"),
        (b"[" * 100_000, None, "recursion"),
        ({"__metadata__": {}, "x": 1}, None, "'x': expected dtype"),
        (
            {"__metadata__": {}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}},
            None,
            "out of bounds",
        ),
        (
            {"__metadata__": {}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
            None,
            "out of bounds",
        ),
        (
            {"__metadata__": {}, "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
            None,
            "out of bounds",
        ),
        ({"__metadata__": {}, "x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, None, "shape"),
        ({"__metadata__": {}, "x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, None, "shape"),
        ({"__metadata__": {}, "x": {"dtype": "Q", "shape": [1], "data_offsets": [0, 4]}}, None, "dtype"),
        (
            {"__metadata__": {}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
            None,
            r"crc32c: expected 8 lower-case hex digits, got None",
        ),
        ({"__metadata__": {}}, None, "bytes of header and tensors"),
    ],
)
def test_headers_are_bounded(tmp_path: Path, header: object, length: int | None, message: str) -> None:
    record = crafted(tmp_path / "a", header, b"\0" * 4 if isinstance(header, dict) else b"", length)
    with pytest.raises(CorruptionError, match=message):
        read_tensors(tmp_path / "a", record)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    import os

    record = write_rows(tmp_path / "a", some_parts(), {})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "directory", "fifo", "missing", "a/a"):
        with pytest.raises(CorruptionError, match=name):
            read_tensors(tmp_path / name, record)
    (tmp_path / "long").write_bytes((tmp_path / "a").read_bytes() + b"x")
    with pytest.raises(CorruptionError, match=f"expected at most {record.size} bytes"):
        read_tensors(tmp_path / "long", record)
    (tmp_path / "short").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(CorruptionError, match=f"expected {record.size} bytes, got {record.size - 1}"):
        read_tensors(tmp_path / "short", record)


def test_ids_are_read_without_their_rows(tmp_path: Path) -> None:
    record = write_rows(tmp_path / "a", some_parts(), {})
    flip(tmp_path / "a", record.size - 1)
    with stored_rows(tmp_path / "a", record, SCHEMA, PLACEMENT, 0) as tables:
        assert [stored.ids().tolist() for stored in tables] == [[0, 3, 5, 6], [1]]
        flip(tmp_path / "a", place(tmp_path / "a", "user.rows"))
        with pytest.raises(CorruptionError, match=r"'user.rows': CRC-32C differs"):
            tables[0].ids()


def test_rows_of_another_shard_or_count_are_refused(tmp_path: Path) -> None:
    record = write_rows(tmp_path / "a", some_parts(), {})
    with pytest.raises(CorruptionError, match=r"shard 1: rows: expected rows of \[7, 14\), got 0..6"):
        read_rows(tmp_path / "a", record, SCHEMA, PLACEMENT, 1)
    wrong = SegmentRecord(name="a", size=record.size, crc=record.crc, rows={"user": 3, "item.id": 1})
    with pytest.raises(CorruptionError, match=r"'user.rows': expected I64 of shape \[3\], got I64 of \[4\]"):
        read_rows(tmp_path / "a", wrong, SCHEMA, PLACEMENT, 0)
    fewer = SegmentRecord(name="a", size=record.size, crc=record.crc, rows={"user": 4})
    with pytest.raises(CorruptionError, match="manifest does not name"):
        read_rows(tmp_path / "a", fewer, SCHEMA, PLACEMENT, 0)
    more = SegmentRecord(
        name="a", size=record.size, crc=record.crc, rows={"user": 4, "item.id": 1, "tiny": 1}
    )
    with pytest.raises(CorruptionError, match=r"tiny\.rows.* is missing"):
        read_rows(tmp_path / "a", more, SCHEMA, PLACEMENT, 0)
