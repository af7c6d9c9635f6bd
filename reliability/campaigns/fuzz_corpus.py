"""Writes the seeds of the fuzz corpus with the project's own writer: `python -m campaigns.fuzz_corpus`."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np

from campaigns.fuzz_inputs import CORPUS, PLACEMENT, SCHEMA, shown
from campaigns.tiny import files_of
from cpr_native.store import CheckpointStore, Placement, SegmentPart, StoreWriter


def _part(table: str, rows: list[int]) -> SegmentPart:
    found = SCHEMA.table(table)
    shape = found.state_shape(len(rows))
    return SegmentPart(
        shard=0,
        table=table,
        rows=np.array(rows, np.int64),
        weight=np.ones((len(rows), found.dim), found.weight_array),
        state=None if shape is None else np.ones(shape, np.float32),
        count=np.ones(len(rows), np.uint32),
    )


def _save(writer: StoreWriter, kind: str, rows: dict[str, list[int]]) -> None:
    with writer.begin(kind, step=1, samples=2, engine={"learning_rate": 0.5}) as save:
        for table, ids in rows.items():
            save.add(_part(table, ids))
        save.commit({"w": np.ones((2, 2), np.float16), "rng": b"1"}, {"at": [1, None, "x"]})


def seeds() -> set[bytes]:
    """Manifests of every kind and segments of every layout, as inputs of the target."""
    found = set()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "c"
        store = CheckpointStore(path)
        with store.writer(SCHEMA, PLACEMENT, run_id="fuzz") as writer:
            _save(writer, "base", {"t": list(range(5)), "u": [0, 1]})
            _save(writer, "delta", {"t": [1], "u": [0]})
            _save(writer, "priority", {"t": [4, 2]})
            writer.rollback(store.latest())
        balanced = CheckpointStore(Path(name) / "b")
        with balanced.writer(SCHEMA, Placement.balanced(SCHEMA, 2), run_id="fuzz"):
            pass
        for file in files_of(Path(name)):
            data = file.read_bytes()
            if file.suffix == ".json":
                found |= {b"M" + data, b"m" + data[:-16]}
            else:
                found |= {b"S" + data, b"s" + data}
        assert all(shown(data, Path(name)) for data in found if b".count" in data or data[:1] in b"mM")
    return found


def main() -> None:
    CORPUS.mkdir(parents=True, exist_ok=True)
    for data in seeds():
        (CORPUS / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
