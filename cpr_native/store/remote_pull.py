"""Bringing objects of a remote checkpoint into the local folder, by range reads side by side."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from cpr_native import _native
from cpr_native._tensor import describe
from cpr_native.errors import CorruptionError
from cpr_native.store import files, naming
from cpr_native.store.background import Workers
from cpr_native.store.manifest import SegmentRecord
from cpr_native.store.remote import Objects, part_ranges

T = TypeVar("T")

THREADS = 8
PULLING = "pulling"  # a folder beside the chains, of files that are not whole yet

_counter = itertools.count()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of bytes."""
    return _native.crc32c(describe(np.frombuffer(data, np.uint8)))


@contextmanager
def side_by_side(calls: int) -> Iterator[Workers]:
    """Gives threads for `calls` calls that wait for the network."""
    workers = Workers(max(1, min(THREADS, calls)))
    try:
        yield workers
    finally:
        workers.close()


def run_all(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Returns the results of `calls`, run side by side."""
    if not calls:
        return []
    with side_by_side(len(calls)) as workers:
        return workers.run(calls)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A segment that must be local: its object, its record, and where it goes."""

    name: str
    record: SegmentRecord
    target: Path

    @property
    def is_local(self) -> bool:
        """Whether a file of its name is there."""
        return files.exists(self.target)


class Pulls:
    """Pulls objects into the folder `cache`, each under another name in `cache/pulling` until it is whole."""

    def __init__(self, objects: Objects, cache: Path) -> None:
        self._objects = objects
        self._folder = cache / PULLING

    def _temporary(self) -> Path:
        files.make_directory(self._folder)
        return self._folder / f"{os.getpid()}-{next(_counter)}"

    def manifest(self, data: bytes, target: Path) -> None:
        """Puts a manifest's bytes in place, durable, over another one of its name; raises OSError."""
        files.make_directory(target.parent)
        temporary = self._temporary()
        files.write_new(temporary, data)
        files.move(temporary, target)
        files.sync_directory(target.parent)

    def segments(self, wanted: Sequence[Wanted]) -> dict[str, CorruptionError]:
        """Brings segments here; returns what is damaged or missing, by name. Raises OSError."""
        sizes = run_all([partial(self._size, each.name) for each in wanted])
        damaged = {}
        whole = []
        for each, size in zip(wanted, sizes, strict=True):
            if size == each.record.size:
                whole.append(each)
                continue
            got = "missing" if size is None else f"expected {each.record.size} bytes, got {size}"
            damaged[each.name] = CorruptionError(f"{self._objects.url}/{each.name}: {got}")
        if whole:
            with side_by_side(sum(len(part_ranges(each.record.size)) for each in whole)) as workers:
                damaged |= self._pull(whole, workers)
        return damaged

    def _size(self, name: str) -> int | None:
        try:
            return self._objects.size(name)
        except FileNotFoundError:
            return None

    def _pull(self, wanted: Sequence[Wanted], workers: Workers) -> dict[str, CorruptionError]:
        damaged = {}
        with ExitStack() as stack:
            pulls = []
            for each in wanted:
                temporary = self._temporary()
                descriptor = files.create(temporary)
                stack.callback(files.remove, temporary)
                stack.callback(files.close, descriptor)
                ranges = part_ranges(each.record.size)
                calls = [partial(self._range, each.name, descriptor, *limits) for limits in ranges]
                pulls.append((each, temporary, descriptor, [workers.submit(call) for call in calls]))
            stack.callback(lambda: [f.exception() for *_, futures in pulls for f in futures])
            for each, temporary, descriptor, futures in pulls:
                crc = 0
                for (begin, end), future in zip(part_ranges(each.record.size), futures, strict=True):
                    crc = _native.crc32c_combine(crc, future.result(), end - begin)
                if crc != each.record.crc:
                    damaged[each.name] = CorruptionError(
                        f"{self._objects.url}/{each.name}: CRC-32C of the file: expected "
                        f"{each.record.crc:08x}, got {crc:08x}"
                    )
                    continue
                files.sync(descriptor)
                files.make_directory(each.target.parent)
                files.move(temporary, each.target)
        for folder in {each.target.parent for each in wanted if each.name not in damaged}:
            files.sync_directory(folder)
        return damaged

    def _range(self, name: str, descriptor: int, begin: int, end: int) -> int:
        try:
            data = self._objects.read(name, begin, end)
        except FileNotFoundError as error:  # removed since its size was read
            raise OSError(errno.EIO, error.strerror, error.filename) from None
        files.write_at(descriptor, data, begin)
        return crc32c(data)

    def clean(self) -> None:
        """Removes what pulls that were killed have left; only while no other process pulls."""
        for name in files.list_directory(self._folder):
            files.remove(self._folder / name)


def chain_of(name: str) -> str | None:
    """Returns the chain that an object belongs to; None when it is not of a checkpoint."""
    chain = name.rsplit("/", 2)[0]
    try:
        naming.shard_of(chain)
    except ValueError:
        return None
    return chain
