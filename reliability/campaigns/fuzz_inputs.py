"""Inputs of the fuzz target: what each is shown to, and what it may raise.

An input is a letter and the bytes of a file. `M`: a manifest; `m`: its JSON alone, which gets the right
last line. `S`: a segment; `s`: a segment whose header gets the right checksums and length. So the parsers
behind the checksums are reached.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import Placement, manifest
from cpr_native.store.check import CommitCheck, check_segments
from cpr_native.store.manifest import Manifest, SegmentRecord
from cpr_native.store.schema import CollectionSchema, TableSchema
from cpr_native.store.segment_reader import read_dense
from cpr_native.store.stored import stored_rows

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
NAME = "000000000002-000.safetensors"
SCHEMA = CollectionSchema(
    tables=(
        TableSchema(name="t", rows=5, dim=2, init_min=0.0, init_max=1.0, state_columns=3),
        TableSchema(name="u", rows=2, dim=3, init_min=0.0, init_max=1.0, dtype="bfloat16"),
    ),
    optimizer="none",
)
PLACEMENT = Placement.contiguous(SCHEMA, 1)


def crc(data: bytes) -> int:
    """CRC-32C."""
    return _native.crc32c(describe(np.frombuffer(data, np.uint8)))


def shown(data: bytes, folder: Path) -> bool:
    """Shows an input to the readers; returns whether they took it. Raises what is no CorruptionError.

    folder: where the segment is written.
    """
    kind, rest = data[:1], data[1:]
    try:
        if kind in (b"M", b"m"):
            text = rest if kind == b"M" else rest + b"crc32c %08x\n" % crc(rest)
            _take_manifest(text)
        elif kind in (b"S", b"s"):
            _take_segment(rest if kind == b"S" else repaired(rest), folder)
        else:
            return False
    except CorruptionError:
        return False
    return True


def _take_manifest(text: bytes) -> None:
    found, ref = manifest.decode(np.frombuffer(text, np.uint8), Path("fuzz"))
    again, _ = manifest.decode(np.frombuffer(manifest.encode(found)[0], np.uint8), Path("fuzz"))
    assert again == found, "what is read is not what is written"
    assert ref.sequence == found.sequence


def _take_segment(data: bytes, folder: Path) -> None:
    (folder / NAME).write_bytes(data)
    record = SegmentRecord(name=NAME, size=len(data), crc=crc(data), rows=_rows(data))
    refused: CorruptionError | None = None
    try:
        read_dense(folder / NAME, record, ())
    except CorruptionError as error:
        refused = error
    check = CommitCheck(manifest=_commit(record), shard=0, folder=folder)
    check_segments([check], 1)
    if check.error is not None:
        raise refused or check.error
    assert refused is None, "rows were taken from a segment whose tensors were not"
    with stored_rows(folder / NAME, record, SCHEMA, PLACEMENT, 0) as tables:
        for stored in tables:
            rows = stored.read()
            assert len(rows.rows) == len(rows.weight) == stored.count


def _rows(data: bytes) -> dict[str, int]:
    """The rows of each table by the shapes that a header states, as its manifest would."""
    header = _header(data)[0]
    rows = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if name.endswith(".rows") and isinstance(shape, list) and len(shape) == 1 and type(shape[0]) is int:
            rows[name.removesuffix(".rows")] = max(0, min(shape[0], 2**40))
    return rows


def _header(data: bytes) -> tuple[Any, bytes]:
    """JSON of a header, None where it is none, and the bytes behind it."""
    length = int.from_bytes(data[:8], "little")
    try:
        return json.loads(data[8 : 8 + length]), data[8 + length :]
    except (ValueError, RecursionError, OverflowError):
        return None, b""


def repaired(data: bytes) -> bytes:
    """A segment with right checksums of its tensors, where its header can be read at all."""
    header, body = _header(data)
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        return data
    for name, entry in header.items():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if isinstance(offsets, list) and len(offsets) == 2 and all(type(at) is int for at in offsets):
            begin, end = (max(0, min(at, len(body))) for at in offsets)
            header["__metadata__"][f"crc32c.{name}"] = f"{crc(body[begin:end]):08x}"
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _commit(record: SegmentRecord) -> Manifest:
    return Manifest(
        chain="shards/0",
        run_id="fuzz",
        sequence=2,
        incarnation=1,
        kind="delta",
        step=1,
        samples=1,
        parent=None,
        grandparent=None,
        exact_parent=None,
        schema=SCHEMA,
        placement=PLACEMENT,
        segments=(record,),
    )


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory where there is one."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
