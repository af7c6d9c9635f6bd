"""How fast rows become durable: a snapshot, segments with checksums and the commits of 8 shards, synced.

The yardstick writes the bytes of the same files, from memory, to as many plain files and syncs each.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import Checkpointed, table_of
from figures import Figures
from harness import Compare

from cpr_native.policy import SaveKind

ROWS = 1_000_000
ROUNDS = 5
STEPS = 2


def save_and_read(job: Checkpointed, kind: SaveKind) -> list[bytes]:
    """Save once, check that recovery gives the rows back, and return the bytes of the new files."""
    before = job.files()
    assert job.manager.save(kind, wait=True)
    written = [path.read_bytes() for path in job.files() if path not in before]
    expected = job.tensors()
    for shard in job.manager.shards:
        shard.discard()
    job.manager.recover(range(len(job.manager.shards)))
    assert all(tensor.equal(expected[name]) for name, tensor in job.tensors().items())
    return written


@pytest.mark.parametrize("kind", ["base", "delta"])
def test_commit_against_plain_files(
    compare: Compare, figures: Figures, tmp_path: Path, kind: SaveKind
) -> None:
    shape = table_of(ROWS, compare.timed)
    job = Checkpointed(shape, tmp_path / "checkpoints")
    job.manager.start()
    job.manager.flush()
    batches = itertools.cycle(shape.batches(20))

    def changes() -> Iterator[Path]:
        for number in itertools.count():
            for ids in itertools.islice(batches, STEPS):
                job.ours.step(ids)
            yield tmp_path / f"plain-{number}"

    places = changes()
    next(places)
    contents = save_and_read(job, kind)

    def commit(_: Path) -> None:
        assert job.manager.save(kind, wait=True)

    def plain(place: Path) -> None:
        place.mkdir()
        for number, content in enumerate(contents):
            with (place / str(number)).open("wb", buffering=0) as file:
                file.write(content)
                os.fsync(file.fileno())

    times = compare(commit, plain, places, rounds=ROUNDS, group=f"commit {kind}")
    if compare.timed:
        size = sum(map(len, contents))
        figures.put(
            "snapshot",
            "commit",
            kind,
            vs_raw=times.ratio,
            ms=times.ours_ms,
            raw_ms=times.yardstick_ms,
            mb=size / 1e6,
            files=len(contents),
        )
        if kind == "base":
            figures.put("snapshot", commit_vs_raw=times.ratio)
    job.manager.close()
    shutil.rmtree(tmp_path)
