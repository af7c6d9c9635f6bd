"""Reads the newest exact state of a checkpoint directory, written from docs/format.md alone.

`python read_checkpoint.py DIRECTORY` prints what is there. Nothing of the package is imported.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np

DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "<i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
WEIGHTS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


class Damaged(Exception):
    """A file is missing or is not what refers to it says."""


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return f"{crc ^ 0xFFFFFFFF:08x}"


def need(holds, what):
    if not holds:
        raise Damaged(what)


class Chain:
    """The manifests of one chain; `replacing`: commits by what they may be read in place of."""

    def __init__(self, root, name):
        self.path, self.manifests, self.crcs = root / name, {}, {}
        for path in sorted((self.path / "manifests").glob("*.json")):
            text, _, last = path.read_bytes().rpartition(b"crc32c ")
            manifest = json.loads(text) if crc32c(text) + "\n" == last.decode("ascii", "replace") else None
            if manifest and (manifest["chain"], f"{manifest['sequence']:012d}.json") == (name, path.name):
                self.manifests[manifest["sequence"]] = manifest
                self.crcs[manifest["sequence"]] = last[:8].decode()
        commits = [m for m in self.manifests.values() if m.get("replaces")]
        self.replacing = {tuple(sorted(m["replaces"].items())): m for m in commits if m["kind"] == "base"}

    def follow(self, ref):
        need(self.crcs.get(ref["sequence"]) == ref["crc32c"], f"{self.path}: commit {ref['sequence']}")
        return self.manifests[ref["sequence"]]

    def back_to_base(self, ref):
        """A base and the deltas after it that give the state at `ref`, oldest first."""
        commits = []
        while ref:
            folded = self.replacing.get(tuple(sorted(ref.items())))
            commit = folded or self.follow(ref)
            if commit["kind"] in ("base", "delta"):
                commits.append(commit)
            if commit["kind"] == "base":
                return commits[::-1]
            ref = commit["exact_parent"]
        raise Damaged(f"{self.path}: no base")

    def tensors(self, commit):
        """The tensors of each segment of a commit."""
        for record in commit["segments"]:
            path = self.path / "segments" / record["name"]
            data = path.read_bytes() if path.is_file() else b""
            need((len(data), crc32c(data)) == (record["size"], record["crc32c"]), path)
            (length,) = struct.unpack("<Q", data[:8])
            header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
            sums, found = header.pop("__metadata__"), {}
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                need(crc32c(body[begin:end]) == sums[f"crc32c.{name}"], f"{path}: {name}")
                found[name] = np.frombuffer(body[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            yield record, found


def decoded(codes, spans, dim, dtype):
    """Weights from codes of 8 or 4 bits: minimum + code * step, in double precision, then rounded."""
    if codes.shape[1] != dim:
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)[:, :dim]
    minimum, step = spans[:, :1].astype("f8"), spans[:, 1:].astype("f8")
    values = minimum + codes * step
    if dtype != "bfloat16":
        return values.astype(WEIGHTS[dtype])
    bits = values.astype("<f4").view("<u4")  # a float32's upper half, rounded to nearest even
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def state_at(root, commit, whole):
    """Weight and state of every table, and the dense entries, at a global commit."""
    tables = {table["name"]: table for table in commit["schema"]["tables"]}
    rows = {
        name: [np.zeros((t["rows"], t["dim"]), WEIGHTS[t.get("dtype", "float32")]), None]
        for name, t in tables.items()
    }
    for shard, ref in commit["commits"].items():
        chain = Chain(root, f"shards/{shard}")
        for part in chain.back_to_base(ref):
            for record, found in chain.tensors(part):
                for name in record["rows"]:
                    ids, weight = found[f"{name}.rows"], found[f"{name}.weight"]
                    if f"{name}.weight_range" in found:
                        kind = tables[name].get("dtype", "float32")
                        weight = decoded(weight, found[f"{name}.weight_range"], tables[name]["dim"], kind)
                    rows[name][0][ids] = weight
                    if f"{name}.state" in found:
                        state = found[f"{name}.state"]
                        if rows[name][1] is None:
                            rows[name][1] = np.zeros((tables[name]["rows"], *state.shape[1:]), "<f4")
                        rows[name][1][ids] = state
    dense = {name: value for _, found in whole.tensors(commit) for name, value in found.items()}
    return rows, {name: v.tobytes() if name in commit["blobs"] else v for name, v in dense.items()}


def newest(root):
    """The newest intact exact state: step, rows by table (weight, state), dense entries."""
    whole = Chain(root, "global")
    commit = whole.manifests[max(whole.manifests)] if whole.manifests else None
    while commit:
        try:
            if commit["kind"] in ("base", "delta"):
                return commit["step"], *state_at(root, commit, whole)
        except Damaged as error:
            print(f"passed over: {error}", file=sys.stderr)
        commit = commit["parent"] and whole.follow(commit["parent"])
    raise Damaged(f"{root}: nothing to restore")


if __name__ == "__main__":
    step, rows, dense = newest(Path(sys.argv[1]))
    print(f"step {step}", *(f"{name} {weight.shape}" for name, (weight, _) in rows.items()), *dense, sep="\n")
