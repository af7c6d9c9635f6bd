from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_cases import PLACEMENT, SCHEMA

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store.checks import check_json
from cpr_native.store.manifest import Manifest, Ref, SegmentRecord, decode, encode

WHERE = Path("dir/000000000009.json")
MANIFEST = Manifest(
    chain="global",
    run_id="run",
    sequence=9,
    incarnation=2,
    kind="delta",
    step=5,
    samples=640,
    parent=Ref(sequence=8, crc=0x1234),
    grandparent=Ref(sequence=6, crc=1),
    exact_parent=None,
    schema=SCHEMA,
    placement=PLACEMENT,
    segments=(
        SegmentRecord(name="000000000009-000.safetensors", size=100, crc=0xFFFFFFFF, rows={"user": 3}),
    ),
    commits={0: Ref(sequence=3, crc=4), 12: Ref(sequence=1, crc=0)},
    blobs=("rng",),
    engine={"learning_rate": 0.1, "nested": [1, None, {"a": "\u00e9"}]},
    info={"pls": 0.05},
)


def bytes_of(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)


def sealed(text: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return bytes_of(text + b"crc32c %08x\n" % _native.crc32c(describe(bytes_of(text))))


def test_round_trip() -> None:
    data, ref = encode(MANIFEST)
    assert decode(bytes_of(data), WHERE) == (MANIFEST, ref)
    assert ref == Ref(sequence=9, crc=_native.crc32c(describe(bytes_of(data[:-16]))))
    assert data.isascii()


def test_text_is_that_of_json_with_sorted_keys_and_a_space_a_level() -> None:
    for manifest in (MANIFEST, replace(MANIFEST, segments=(), commits={}, engine={}, info={}, parent=None)):
        text = encode(manifest)[0][:-16]
        values = json.loads(text)
        assert text.decode() == json.dumps(values, sort_keys=True, indent=1) + "\n"
        assert values["schema"] == SCHEMA.to_json()
        assert values["placement"] == PLACEMENT.to_json()


def test_rows_and_bytes_are_sums_over_segments() -> None:
    more = SegmentRecord(name="000000000009-001.safetensors", size=11, crc=0, rows={"user": 1, "tiny": 2})
    manifest = replace(MANIFEST, segments=(*MANIFEST.segments, more))
    assert manifest.rows == {"user": 4, "tiny": 2}
    assert manifest.bytes == 111


def test_v22_every_bit_of_a_manifest_counts() -> None:
    data = bytearray(encode(MANIFEST)[0])
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError, match="000000000009"):
            decode(bytes_of(bytes(data)), WHERE)
        data[bit // 8] ^= 1 << bit % 8


def test_every_shorter_file_is_refused() -> None:
    data = encode(MANIFEST)[0]
    for size in range(len(data)):
        with pytest.raises(CorruptionError):
            decode(bytes_of(data[:size]), WHERE)
    with pytest.raises(CorruptionError, match="last line"):
        decode(bytes_of(data + b"\n"), WHERE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=4), r"this release reads \(1, 2, 3\), got 4"),
        (lambda m: m.update(format_version=True), r"this release reads \(1, 2, 3\), got True"),
        (lambda m: m.update(more=1), "expected the fields"),
        (lambda m: m.update(format_version=2), "expected the fields"),
        (lambda m: m.pop("step"), "expected the fields"),
        (lambda m: m.pop("replaces"), "expected the fields"),
        (lambda m: m.update(replaces=m["parent"]), "replaces: expected null in a delta of global"),
        (
            lambda m: m.update(replaces=m["parent"], chain="shards/0"),
            "replaces: expected null in a delta of sh",
        ),
        (
            lambda m: m.update(replaces=m["parent"], chain="shards/0", kind="base"),
            r"replaces: expected a base without parents, got \['parent', 'grandparent'\]",
        ),
        (
            lambda m: m.update(
                chain="shards/0", kind="priority", replaces={"sequence": 9, "crc32c": "00000000"}
            ),
            "replaces: expected a sequence below 9, got 9",
        ),
        (lambda m: m.update(kind="full"), "kind: expected"),
        (lambda m: m.update(sequence=0), "sequence: expected 1"),
        (lambda m: m.update(sequence="9"), "sequence: expected an int"),
        (lambda m: m.update(step=-1), "step: expected 0"),
        (lambda m: m.update(step=True), "step: expected an int"),
        (lambda m: m.update(samples=1.5), "samples: expected an int"),
        (lambda m: m.update(samples=10**30), "samples: expected"),
        (lambda m: m.update(chain="shards/../x"), "chain: expected"),
        (lambda m: m.update(chain=3), "chain: expected a str"),
        (lambda m: m.update(run_id=""), "run_id"),
        (lambda m: m["parent"].update(sequence=9), "parent: expected a sequence below 9"),
        (lambda m: m["parent"].update(crc32c="1"), "crc32c: expected 8"),
        (lambda m: m["parent"].update(crc32c="0000ABCD"), "crc32c: expected 8"),
        (lambda m: m.update(segments={}), "segments: expected list"),
        (
            lambda m: m["segments"][0].update(name="../../etc/passwd"),
            "segment name: expected one of commit 9",
        ),
        (
            lambda m: m["segments"][0].update(name="000000000008-000.safetensors"),
            "segment name: expected one of",
        ),
        (
            lambda m: m["segments"][0].update(name="000000000009.json"),
            "segment name: expected one of commit 9",
        ),
        (lambda m: m["segments"][0].update(size=-1), "segment size"),
        (lambda m: m["segments"][0].update(rows={"user": -1}), "segment rows"),
        (lambda m: m["segments"][0].update(rows=[]), "segment rows"),
        (lambda m: m["commits"].update({"01": m["parent"]}), "chain: expected"),
        (lambda m: m["commits"].update({"1": None}), "reference"),
        (lambda m: m.update(blobs=[1]), "blobs"),
        (lambda m: m["schema"].update(optimizer="lion"), "optimizer"),
        (lambda m: m["schema"]["tables"][0].update(rows=0), "rows"),
        (lambda m: m["placement"].update(strategy="x"), "strategy"),
        (lambda m: m["placement"]["blocks"].update(user=1), "hold fewer"),
        (lambda m: m.update(engine=[]), "engine: expected dict"),
    ],
)
def test_what_encode_would_not_write_is_refused(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    body = json.loads(encode(MANIFEST)[0][:-16])
    change(body)
    with pytest.raises(CorruptionError, match=f"000000000009.json: .*{message}"):
        decode(sealed(json.dumps(body).encode()), WHERE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "expected the fields"),
        (b'{"a":1,"a":1}', "key given twice"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "recursion"),
        (b"\xff", "utf-8"),
    ],
)
def test_other_json_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode(sealed(text), WHERE)


def test_only_json_values_are_taken() -> None:
    check_json("engine", {"a": [1, 2.5, None, True, "x", {}]})
    for value in ({"a": (1, 2)}, {1: 2}, {"a": float("nan")}, {"a": b""}, [1]):
        with pytest.raises((TypeError, ValueError)):
            check_json("engine", value)


def test_a_manifest_over_the_limit_is_not_written() -> None:
    with pytest.raises(ValueError, match="expected at most 16777216 bytes"):
        encode(replace(MANIFEST, info={"x": "y" * 2**24}))
