"""The system calls of the store, all of them: `files`, `lock` and the native segment files go through this.

`use` puts another object in their place, which is how the tests fail each call in turn, lose what was not
synced, or stop a job after any call.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class System:
    """The calls of the operating system under their own names; each raises OSError. Thread-safe."""

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Returns a descriptor."""
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        """Closes a descriptor."""
        os.close(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """Returns the status of an open file."""
        return os.fstat(fd)

    def lstat(self, path: str) -> os.stat_result:
        """Returns the status of a file, of a link itself."""
        return os.lstat(path)

    def listdir(self, fd: int) -> list[str]:
        """Returns the names in an open directory."""
        return os.listdir(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Returns at most `size` bytes at `offset`; none at the end of the file."""
        return os.pread(fd, size, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Writes at `offset`; returns how many bytes were written."""
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        """Makes a file or a directory durable."""
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Makes the bytes of a file durable."""
        os.fdatasync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        """Cuts a file to `size` bytes."""
        os.ftruncate(fd, size)

    def mkdir(self, path: str) -> None:
        """Makes a directory."""
        os.mkdir(path)

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name, which must not exist."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name, in place of what had it."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Removes a name."""
        os.unlink(path)

    def lock(self, fd: int) -> None:
        """Takes the exclusive POSIX lock of a file; EACCES or EAGAIN when another process has it."""
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


_REAL = System()
_current = _REAL


def current() -> System:
    """Returns what stands for the operating system now."""
    return _current


def for_native() -> System | None:
    """Returns what native code is to call; None: the operating system, at its own speed."""
    return None if _current is _REAL else _current


@contextmanager
def use(system: System) -> Iterator[None]:
    """Puts `system` in the place of the operating system for all threads of the process, in the block."""
    global _current
    before, _current = _current, system
    try:
        yield
    finally:
        _current = before
