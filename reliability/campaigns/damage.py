"""Judging damage: it must be found and named, and a restore must be as if the damaged file were not there."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaigns.tiny import Restored, Tiny, files_of, restore
from cpr_native.errors import CorruptionError
from cpr_native.store import files, naming, verify
from cpr_native.store.chain import ChainReader, identity_of
from cpr_native.store.check import CommitCheck, check_segments
from cpr_native.store.manifest import Manifest

# Of a file and its good bytes: what it is changed into, in turn.
Changes = Callable[[Path, bytes], Iterator[bytes]]


class Judge:
    """Knows what restores of a directory give, whole and without each of its files."""

    def __init__(self, job: Tiny) -> None:
        self.job = job
        self.whole = restore(job)
        assert self.whole.state is not None
        assert verify(job.path) == []
        self.without: dict[Path, Restored] = {}
        self._manifests: dict[tuple[str, int], Manifest] = {}
        for path in files_of(job.path):
            kept = path.read_bytes()
            path.unlink()
            self.without[path] = restore(job)
            path.write_bytes(kept)
        for chain in (naming.GLOBAL, *(naming.shard_chain(shard) for shard in range(job.shards))):
            reader = ChainReader(job.path, chain)
            for sequence in reader.sequences:
                self._manifests[chain, sequence] = reader.load(sequence)[0]

    def finds(self, path: Path) -> bool:
        """Whether the readers of the damaged file alone refuse it and name it."""
        chain = path.parent.parent.relative_to(self.job.path).as_posix()
        parsed = naming.parse(path.name)
        assert parsed is not None
        manifest = self._manifests[chain, parsed.sequence]
        if parsed.what == "manifest":
            try:
                ChainReader(self.job.path, chain, identity_of(manifest)).load(parsed.sequence)
            except CorruptionError as error:
                return str(path) in str(error)
            return False
        check = CommitCheck(manifest=manifest, shard=naming.shard_of(chain), folder=path.parent)
        check_segments([check], 1)
        return check.error is not None and str(path) in str(check.error)

    def survives(self, path: Path) -> bool:
        """Whether `verify` names the damaged file, and a restore leaves it out, says so and is right."""
        if not any(str(path) in problem for problem in verify(self.job.path)):
            return False
        expected, got = self.without[path], restore(self.job)
        if got.state != expected.state or (got.state is None and got.applied):
            return False
        needed = expected.state != self.whole.state
        return str(path) in got.said or not needed


def change_all(
    make: Callable[[Path], Tiny], changes: Changes, *, whole_every: int, processes: int
) -> dict[str, Any]:
    """Makes all `changes` to each file of a directory, one at a time; returns how many, and how many unseen.

    Each is shown to the readers of that file, and every `whole_every`-th to `verify` and a restore as well.
    """
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        parts = [
            pool.apply_async(_part, (make, changes, whole_every, processes, n)) for n in range(processes)
        ]
        counts = [part.get() for part in parts]
    unseen = [message for _, messages in counts for message in messages]
    return {"tried": sum(tried for tried, _ in counts), "undetected": len(unseen), "unseen": unseen[:20]}


def _part(
    make: Callable[[Path], Tiny], changes: Changes, whole_every: int, processes: int, number: int
) -> tuple[int, list[str]]:
    memory = Path("/dev/shm")  # nothing here is about a disk
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        judge = Judge(make(Path(folder) / "tiny"))
        tried, unseen = 0, []
        for path in files_of(judge.job.path):
            good = path.read_bytes()
            for at, data in enumerate(changes(path, good)):
                if at % processes != number or data == good:
                    continue
                tried += 1
                _overwrite(path, data)
                whole = (tried + number) % whole_every == 0
                if not judge.finds(path) or (whole and not judge.survives(path)):
                    unseen.append(f"{path.relative_to(folder)}: change {at}")
            _overwrite(path, good)
        assert verify(judge.job.path) == []
        return tried, unseen


def _overwrite(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, data)
    os.close(descriptor)


def processors() -> int:
    """How many workers a campaign has unless told otherwise."""
    return files.reading_threads()
