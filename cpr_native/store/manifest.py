"""One commit of one chain as a small JSON file that ends with its own CRC-32C."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

import numpy as np
from numpy.typing import NDArray

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import naming
from cpr_native.store.checks import check_count, check_text, exact_fields
from cpr_native.store.placement import Placement
from cpr_native.store.schema import CollectionSchema, json_text

FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)  # 1: tables lack dtype and state columns; before 3: no `replaces`
MAX_MANIFEST_BYTES = 16 * 2**20

Kind = Literal["base", "delta", "priority", "epoch", "rollback"]
KINDS: tuple[str, ...] = get_args(Kind)
EXACT_KINDS = ("base", "delta")
DATA_KINDS = ("base", "delta", "priority")

_HEX = re.compile(r"[0-9a-f]{8}", re.ASCII)
_TRAILER = re.compile(rb"crc32c ([0-9a-f]{8})\n")
_TRAILER_BYTES = 16
_FIELDS = [
    "chain",
    "commits",
    "engine",
    "exact_parent",
    "format_version",
    "grandparent",
    "incarnation",
    "info",
    "kind",
    "parent",
    "placement",
    "replaces",
    "run_id",
    "samples",
    "schema",
    "segments",
    "sequence",
    "step",
    "blobs",
]
_CONTAINERS = {"segments": list, "commits": dict, "blobs": list, "engine": dict, "info": dict}
_FIELDS_BEFORE_3 = [name for name in _FIELDS if name != "replaces"]


@dataclass(frozen=True, kw_only=True, order=True)
class Ref:
    """A commit of a chain: its sequence number and the CRC-32C of its manifest."""

    sequence: int
    crc: int

    def to_json(self) -> dict[str, Any]:
        """Returns the reference as JSON values."""
        return {"sequence": self.sequence, "crc32c": f"{self.crc:08x}"}

    @classmethod
    def from_json(cls, data: object) -> Ref:
        """Returns the reference that `to_json` wrote; raises ValueError or TypeError."""
        values = exact_fields("reference", data, ["sequence", "crc32c"])
        check_count("reference sequence", values["sequence"], 1)
        return cls(sequence=values["sequence"], crc=_parse_crc(values["crc32c"]))


@dataclass(frozen=True, kw_only=True)
class SegmentRecord:
    """A segment file: name, size in bytes, CRC-32C of the whole file, rows of each table in it."""

    name: str
    size: int
    crc: int
    rows: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return {"name": self.name, "size": self.size, "crc32c": f"{self.crc:08x}", "rows": dict(self.rows)}

    @classmethod
    def from_json(cls, data: object, sequence: int) -> SegmentRecord:
        """Returns the record that `to_json` wrote for commit `sequence`; raises ValueError or TypeError."""
        values = exact_fields("segment", data, ["name", "size", "crc32c", "rows"])
        check_text("segment name", values["name"])
        parsed = naming.parse(values["name"])
        if parsed is None or parsed.what != "segment" or parsed.sequence != sequence:
            raise ValueError(f"segment name: expected one of commit {sequence}, got {values['name']!r}")
        check_count("segment size", values["size"], 0)
        if not isinstance(values["rows"], dict):
            raise TypeError("segment rows: expected an object")
        for table, rows in values["rows"].items():
            check_text("segment table", table)
            check_count(f"segment rows of table {table!r}", rows, 0)
        return cls(
            name=values["name"], size=values["size"], crc=_parse_crc(values["crc32c"]), rows=values["rows"]
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One commit.

    `parent` is the commit before it in history and `grandparent` the parent's, a way around a damaged parent.
    `exact_parent` is the newest base or delta in that history: exact restore follows only these.
    `commits` (global chain) maps each shard to the commit of its chain that belongs with this one.
    `replaces` (shard chains, made by compaction) is the commit that may be read from this one instead: a base
    holds what base and deltas up to it give, a priority commit the newest rows of a run that ends in it.
    `blobs` (global chain) are the dense entries that were `bytes`.
    """

    chain: str
    run_id: str
    sequence: int
    incarnation: int
    kind: Kind
    step: int
    samples: int
    parent: Ref | None
    grandparent: Ref | None
    exact_parent: Ref | None
    schema: CollectionSchema
    placement: Placement
    segments: tuple[SegmentRecord, ...] = ()
    commits: Mapping[int, Ref] = field(default_factory=dict)
    replaces: Ref | None = None
    blobs: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, int]:
        """Rows of each table in the segments of this commit."""
        total: dict[str, int] = {}
        for record in self.segments:
            for table, rows in record.rows.items():
                total[table] = total.get(table, 0) + rows
        return total

    @property
    def bytes(self) -> int:
        """Bytes of the segments of this commit."""
        return sum(record.size for record in self.segments)


def encode(manifest: Manifest) -> tuple[bytes, Ref]:
    """Returns the bytes of the file and the reference to the commit; raises ValueError when over 16 MiB."""
    body = {
        "format_version": FORMAT_VERSION,
        "chain": manifest.chain,
        "run_id": manifest.run_id,
        "sequence": manifest.sequence,
        "incarnation": manifest.incarnation,
        "kind": manifest.kind,
        "step": manifest.step,
        "samples": manifest.samples,
        "parent": manifest.parent.to_json() if manifest.parent else None,
        "grandparent": manifest.grandparent.to_json() if manifest.grandparent else None,
        "exact_parent": manifest.exact_parent.to_json() if manifest.exact_parent else None,
        "replaces": manifest.replaces.to_json() if manifest.replaces else None,
        "segments": [record.to_json() for record in manifest.segments],
        "commits": {str(shard): ref.to_json() for shard, ref in manifest.commits.items()},
        "blobs": list(manifest.blobs),
        "engine": dict(manifest.engine),
        "info": dict(manifest.info),
    }
    texts = {name: json_text(value) for name, value in body.items()}
    texts |= {"schema": manifest.schema.json_text, "placement": manifest.placement.json_text}
    inner = ",\n ".join(f'"{name}": {texts[name]}' for name in sorted(texts))
    text = f"{{\n {inner}\n}}\n".encode("ascii")
    if len(text) + _TRAILER_BYTES > MAX_MANIFEST_BYTES:
        raise ValueError(f"manifest: expected at most {MAX_MANIFEST_BYTES} bytes, got {len(text)}")
    crc = _crc(np.frombuffer(text, np.uint8))
    return text + b"crc32c %08x\n" % crc, Ref(sequence=manifest.sequence, crc=crc)


def decode(data: NDArray[np.uint8], where: Path) -> tuple[Manifest, Ref]:
    """Returns the manifest in the bytes of a file and the reference to it.

    Raises CorruptionError, naming `where`: bad CRC, unknown version, anything that `encode` does not write.
    """
    trailer = _TRAILER.fullmatch(data[-_TRAILER_BYTES:].tobytes())
    if trailer is None:
        raise CorruptionError(f"{where}: expected a last line 'crc32c <8 hex digits>'")
    text, expected = data[:-_TRAILER_BYTES], int(trailer[1], 16)
    if (got := _crc(text)) != expected:
        raise CorruptionError(f"{where}: CRC-32C: expected {expected:08x}, got {got:08x}")
    try:
        manifest = _from_json(parse_json(text.tobytes()))
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptionError(f"{where}: {error}") from None
    return manifest, Ref(sequence=manifest.sequence, crc=expected)


def parse_json(text: bytes) -> object:
    """Returns JSON values; raises ValueError for repeated keys and for NaN or infinities as well."""
    return json.loads(text.decode("utf-8"), object_pairs_hook=_no_repeats, parse_constant=_no_constant)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError(f"key given twice among {[key for key, _ in pairs]}")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _crc(data: NDArray[np.uint8]) -> int:
    return _native.crc32c(describe(data))


def _parse_crc(text: object) -> int:
    if not isinstance(text, str) or not _HEX.fullmatch(text):
        raise ValueError(f"crc32c: expected 8 lower-case hex digits, got {text!r}")
    return int(text, 16)


@functools.lru_cache(maxsize=8)
def _model(text: str, *, typed: bool) -> tuple[CollectionSchema, Placement]:
    """Returns the schema and the placement in JSON; those of all commits of a directory are the same text."""
    schema, placement = json.loads(text)
    parsed = CollectionSchema.from_json(schema, typed=typed), Placement.from_json(placement)
    parsed[1].check_covers(parsed[0])
    return parsed


def _check_replacement(values: Mapping[str, Any], refs: Mapping[str, Ref | None]) -> None:
    if refs["replaces"] is None:
        return
    if values["chain"] == naming.GLOBAL or values["kind"] not in ("base", "priority"):
        raise ValueError(f"replaces: expected null in a {values['kind']} of {values['chain']}")
    links = [name for name in ("parent", "grandparent", "exact_parent") if refs[name] is not None]
    if values["kind"] == "base" and links:
        raise ValueError(f"replaces: expected a base without parents, got {links}")


def _from_json(data: object) -> Manifest:
    version = data.get("format_version") if isinstance(data, dict) else None
    if isinstance(data, dict) and (type(version) is not int or version not in READABLE_VERSIONS):
        raise ValueError(f"format version: this release reads {READABLE_VERSIONS}, got {version!r}")
    values = exact_fields("manifest", data, _FIELDS if version == 3 else _FIELDS_BEFORE_3)
    naming.shard_of(values["chain"]) if isinstance(values["chain"], str) else check_text(
        "chain", values["chain"]
    )
    check_text("run_id", values["run_id"])
    for name, least in (("sequence", 1), ("incarnation", 1), ("step", 0), ("samples", 0)):
        check_count(name, values[name], least)
    if values["kind"] not in KINDS:
        raise ValueError(f"kind: expected one of {KINDS}, got {values['kind']!r}")
    for name, kind in _CONTAINERS.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {type(values[name]).__name__}")
    if not all(isinstance(name, str) for name in values["blobs"]):
        raise TypeError("blobs: expected strings")
    refs = {
        name: None if values.get(name) is None else Ref.from_json(values[name])
        for name in ("parent", "grandparent", "exact_parent", "replaces")
    }
    for name, ref in refs.items():
        if ref is not None and ref.sequence >= values["sequence"]:
            raise ValueError(f"{name}: expected a sequence below {values['sequence']}, got {ref.sequence}")
    _check_replacement(values, refs)
    model = json.dumps([values["schema"], values["placement"]], sort_keys=True)
    schema, placement = _model(model, typed=version != 1)
    commits = {}
    for shard, ref in values["commits"].items():
        naming.shard_of(f"{naming.SHARDS}/{shard}")
        commits[int(shard)] = Ref.from_json(ref)
    return Manifest(
        chain=values["chain"],
        run_id=values["run_id"],
        sequence=values["sequence"],
        incarnation=values["incarnation"],
        kind=cast(Kind, values["kind"]),
        step=values["step"],
        samples=values["samples"],
        schema=schema,
        placement=placement,
        segments=tuple(SegmentRecord.from_json(s, values["sequence"]) for s in values["segments"]),
        commits=commits,
        blobs=tuple(values["blobs"]),
        engine=values["engine"],
        info=values["info"],
        **refs,
    )
