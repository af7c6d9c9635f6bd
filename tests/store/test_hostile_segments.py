"""Segments with misleading headers, whose checksums and records are right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaigns.fuzz_inputs import crc
from campaigns.tiny import Tiny, restore, tiny_directory

from cpr_native.store import verify

FOLDER = "shards/0"
HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "huge offset": lambda h: h["t.weight"].update(data_offsets=[0, 2**62]),
    "negative offset": lambda h: h["t.weight"].update(data_offsets=[-4, 4]),
    "overlapping": lambda h: h["t.weight"].update(data_offsets=h["t.rows"]["data_offsets"]),
    "offsets of another type": lambda h: h["t.weight"].update(data_offsets="0:4"),
    "float offsets": lambda h: h["t.weight"].update(data_offsets=[8.0, 12.5]),
    "three offsets": lambda h: h["t.weight"].update(data_offsets=[8, 10, 12]),
    "huge shape": lambda h: h["t.weight"].update(shape=[2**40, 2**40]),
    "shape that overflows": lambda h: h["t.weight"].update(shape=[2**33, 2**33]),
    "many dimensions": lambda h: h["t.weight"].update(shape=[1] * 100),
    "negative shape": lambda h: h["t.weight"].update(shape=[-1, -1]),
    "bool in shape": lambda h: h["t.weight"].update(shape=[True, 1]),
    "unknown dtype": lambda h: h["t.weight"].update(dtype="F8"),
    "other dtype": lambda h: h["t.weight"].update(dtype="I32"),
    "dtype of another type": lambda h: h["t.weight"].update(dtype=["F32"]),
    "foreign field": lambda h: h["t.weight"].update(extra=1),
    "entry of another type": lambda h: h.update({"t.weight": 7}),
    "tensor missing": lambda h: h.pop("t.count"),
    "foreign tensor": lambda h: h.update({"x": {"dtype": "F32", "shape": [0], "data_offsets": [20, 20]}}),
    "no metadata": lambda h: h.pop("__metadata__"),
    "metadata of another type": lambda h: h.update(__metadata__=[]),
    "checksum of another type": lambda h: h["__metadata__"].update({"crc32c.t.weight": 1}),
    "checksum in capitals": lambda h: h["__metadata__"].update({"crc32c.t.weight": "ABCDEF01"}),
    "checksum missing": lambda h: h["__metadata__"].pop("crc32c.t.weight"),
}
RAW = {
    "length beyond the file": lambda d: (2**40).to_bytes(8, "little") + d[8:],
    "greatest length": lambda d: b"\xff" * 8 + d[8:],
    "no header": lambda d: bytes(8) + d[8:],
    "no JSON": lambda d: d[:8] + b"}" + d[9:],
    "deep": lambda d: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "repeated name": lambda d: d.replace(b'"t.count"', b'"t.state"'),
    "seven bytes": lambda d: d[:7],
    "nothing": lambda _: b"",
    "no UTF-8": lambda d: d[:10] + b"\xff\xfe" + d[12:],
    "row of another shard": lambda d: with_rows(d, 2**40),
    "negative row": lambda d: with_rows(d, -1),
}


def with_rows(data: bytes, row: int) -> bytes:
    """The one row of a segment under another number, with the right checksum."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    rows = row.to_bytes(8, "little", signed=True)
    begin, end = header["t.rows"]["data_offsets"]
    assert end - begin == 8
    old = header["__metadata__"]["crc32c.t.rows"].encode()
    changed = data[8 : 8 + length].replace(old, b"%08x" % crc(rows))
    body = data[8 + length :]
    return data[:8] + changed + body[:begin] + rows + body[end:]


def put(job: Tiny, data: bytes) -> Path:
    """Writes the newest segment, and the manifests that lead to it, with right checksums."""
    path = job.path / FOLDER / "segments" / "000000000003-000.safetensors"
    path.write_bytes(data)
    shard, whole = (job.path / chain / "manifests" / "000000000003.json" for chain in (FOLDER, "global"))
    body = json.loads(shard.read_bytes()[:-16])
    body["segments"][0].update(size=len(data), crc32c=f"{crc(data):08x}")
    text = json.dumps(body).encode() + b"\n"
    shard.write_bytes(text + b"crc32c %08x\n" % crc(text))
    body = json.loads(whole.read_bytes()[:-16])
    body["commits"]["0"]["crc32c"] = f"{crc(text):08x}"
    text = json.dumps(body).encode() + b"\n"
    whole.write_bytes(text + b"crc32c %08x\n" % crc(text))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_directory(tmp_path_factory.mktemp("made") / "c").path


@pytest.fixture
def job(made: Path, tmp_path: Path) -> Tiny:
    return Tiny(Path(shutil.copytree(made, tmp_path / "c")))


def check_refused(job: Tiny, path: Path, newest: bytes | None) -> None:
    assert any(str(path) in problem for problem in verify(job.path)), verify(job.path)
    found = restore(job)
    assert found.state not in (None, newest)
    assert str(path) in found.said


def test_a_segment_put_back_as_it_was_is_taken(job: Tiny) -> None:
    whole = restore(job)
    path = job.path / FOLDER / "segments" / "000000000003-000.safetensors"
    put(job, path.read_bytes())
    assert restore(job) == whole
    assert verify(job.path) == []


@pytest.mark.parametrize("what", HEADERS)
def test_v22_a_misleading_header_is_refused(job: Tiny, what: str) -> None:
    newest = restore(job).state
    path = job.path / FOLDER / "segments" / "000000000003-000.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    HEADERS[what](header)
    text = json.dumps(header).encode()
    put(job, len(text).to_bytes(8, "little") + text + data[8 + length :])
    check_refused(job, path, newest)


@pytest.mark.parametrize("what", RAW)
def test_v22_a_segment_that_is_none_is_refused(job: Tiny, what: str) -> None:
    newest = restore(job).state
    path = job.path / FOLDER / "segments" / "000000000003-000.safetensors"
    put(job, RAW[what](path.read_bytes()))
    check_refused(job, path, newest)
