"""A file system whose calls fail, hang or are cut short on demand, for the tests of remote checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from cpr_native.store import CheckpointStore

Fault = Callable[[str, str], None]  # of a call and a path; raises to make it fail


class Log:
    """What every `faulty://` file system does and is told, set anew by each test."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.fault: Fault = lambda _call, _path: None
        self.latency = 0.0  # seconds of each call
        self.bandwidth = float("inf")  # bytes a second of each stream
        self.cut = False  # the next write breaks off in the middle

    def note(self, call: str, path: str) -> None:
        with self._guard:
            self.calls.append((call, path))
        if self.latency:
            time.sleep(self.latency)
        self.fault(call, path)

    def paths(self, call: str) -> list[str]:
        return [path for name, path in self.calls if name == call]


LOG = Log()


class FaultyFile(LocalFileOpener):
    def write(self, data: bytes) -> int:
        LOG.note("write", self.path)
        if LOG.cut:
            LOG.cut = False
            self.f.write(data[: len(data) // 2])
            self.f.flush()
            raise ConnectionResetError(104, "connection reset by peer")
        return int(self.f.write(data))


class FaultyFileSystem(LocalFileSystem):
    """Local files behind a connection that can break."""

    protocol = ("faulty", "file")

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        if "r" in mode and "+" not in mode:
            return super()._open(path, mode, block_size, **kwargs)
        return FaultyFile(self._strip_protocol(path), mode, fs=self, **kwargs)

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        LOG.note("list", path)
        return super().find(path, *args, **kwargs)

    def info(self, path: Any, **kwargs: Any) -> Any:
        if isinstance(path, str):
            LOG.note("info", path)
        return super().info(path, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        LOG.note("read", path)
        data = bytes(super().cat_file(path, start, end, **kwargs))
        time.sleep(len(data) / LOG.bandwidth)
        return data

    def link(self, src: str, dst: str, **kwargs: Any) -> None:
        LOG.note("link", dst)
        super().link(src, dst, **kwargs)

    def rm_file(self, path: str) -> None:
        LOG.note("remove", path)
        super().rm_file(path)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


def open_store(tmp_path: Path, cache: str = "cache") -> CheckpointStore:
    """A store in the folder "remote", seen through a cache of its own."""
    return CheckpointStore(f"faulty://{tmp_path}/remote", cache=tmp_path / cache)


def fail(call: str, part: str, times: int = 10**9, error: type[Exception] = ConnectionResetError) -> Fault:
    """The first calls of a kind on paths that hold `part` raise."""
    left = [times]

    def fault(name: str, path: str) -> None:
        if name == call and part in path and left[0]:
            left[0] -= 1
            raise error(104, "connection reset by peer")

    return fault


def files(path: Path) -> list[str]:
    """What is in a checkpoint, but the locks."""
    return sorted(f.relative_to(path).as_posix() for f in path.rglob("*") if f.is_file() and f.name != "LOCK")
