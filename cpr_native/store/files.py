"""What the store does with files but segments. Reads refuse links; a write is durable on return."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CorruptionError
from cpr_native.store import system

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_DAMAGE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.EINVAL,
    errno.EISDIR,
    errno.EFBIG,
    errno.EIO,
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: Path) -> None:
    """Creates `path` and its missing parents; each new entry is synced. Raises OSError."""
    if _is_directory(path):
        return
    make_directory(path.parent)
    try:
        system.current().mkdir(str(path))
    except FileExistsError:
        if not _is_directory(path):
            raise
    sync_directory(path.parent)


def _is_directory(path: Path) -> bool:
    try:
        descriptor = system.current().open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    system.current().close(descriptor)
    return True


def exists(path: Path) -> bool:
    """Whether there is a file of that name, a link too; raises OSError when that can't be said."""
    try:
        system.current().lstat(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_directory(path: Path) -> None:
    """Makes the entries of a directory durable; raises OSError with its path."""
    calls = system.current()
    descriptor = calls.open(str(path), _READ | os.O_DIRECTORY)
    try:
        calls.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        calls.close(descriptor)


def list_directory(path: Path) -> list[str]:
    """Returns the sorted names in a directory, none if it does not exist; a link to one raises OSError."""
    calls = system.current()
    try:
        descriptor = calls.open(str(path), _READ | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return sorted(calls.listdir(descriptor))
    finally:
        calls.close(descriptor)


@contextmanager
def opened(path: Path, max_size: int) -> Iterator[tuple[int, int]]:
    """Opens a regular file for reading; gives its descriptor and size in bytes.

    Errors of the system inside the block become, like those of opening it, CorruptionError (missing, a link,
    no regular file, over `max_size` bytes, unreadable on its disk), or OSError with `path` for what says
    nothing about the file (permission, descriptors, memory).
    """
    calls = system.current()
    try:
        descriptor = calls.open(str(path), _READ | os.O_NONBLOCK)
        try:
            status = calls.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "expected a regular file")
            if status.st_size > max_size:
                raise OSError(errno.EFBIG, f"expected at most {max_size} bytes, got {status.st_size}")
            yield descriptor, status.st_size
        finally:
            calls.close(descriptor)
    except OSError as error:
        raise_error(path, error)


def raise_error(path: Path, error: OSError) -> NoReturn:
    """Raises what `opened` makes of an error of reading `path`."""
    if error.errno in _DAMAGE:
        raise CorruptionError(f"{path}: {error.strerror}") from None
    raise OSError(error.errno, error.strerror, str(path)) from None


def read_file(path: Path, max_size: int) -> NDArray[np.uint8]:
    """Returns all bytes of a regular file in fresh memory; raises what `opened` raises."""
    with opened(path, max_size) as (descriptor, size):
        return read_at(descriptor, 0, size)


def read_at(descriptor: int, offset: int, size: int) -> NDArray[np.uint8]:
    """Returns `size` bytes at `offset` in fresh memory; raises OSError, EIO when the file ends before."""
    calls = system.current()
    data = np.empty(size, np.uint8)
    filled = 0
    while filled < size:
        got = calls.pread(descriptor, size - filled, offset + filled)
        if not got:
            raise OSError(errno.EIO, f"file ends at {offset + filled}, before {offset + size} bytes")
        data[filled : filled + len(got)] = np.frombuffer(got, np.uint8)
        filled += len(got)
    return data


def reading_threads() -> int:
    """Returns how many threads read a file: the processors of this process, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def write_new(path: Path, data: bytes) -> None:
    """Creates `path`, which must not exist, with `data` and syncs it; on OSError removes it again."""
    calls = system.current()
    descriptor = calls.open(str(path), _CREATE)
    try:
        try:
            written = 0
            while written < len(data):
                written += calls.pwrite(descriptor, data[written:], written)
            calls.fsync(descriptor)
        finally:
            calls.close(descriptor)
    except OSError as error:
        remove(path)
        raise OSError(error.errno, error.strerror, str(path)) from None


def link_new(source: Path, target: Path) -> None:
    """Gives `source` the second name `target`, which must not exist: the exclusive step of a commit."""
    system.current().link(str(source), str(target))


def remove(path: Path) -> None:
    """Removes a file; a missing one is as good."""
    with suppress(FileNotFoundError):
        system.current().unlink(str(path))


def create(path: Path) -> int:
    """Creates `path`, which must not exist, and returns a descriptor to write to it; raises OSError."""
    return system.current().open(str(path), _CREATE)


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Writes all of `data` at `offset`; raises OSError."""
    calls = system.current()
    written = 0
    while written < len(data):
        written += calls.pwrite(descriptor, data[written:], offset + written)


def sync(descriptor: int) -> None:
    """Makes an open file durable; raises OSError."""
    system.current().fsync(descriptor)


def close(descriptor: int) -> None:
    """Closes an open file."""
    system.current().close(descriptor)


def move(source: Path, target: Path) -> None:
    """Gives `source` the name `target`, in place of what had it; raises OSError."""
    system.current().rename(str(source), str(target))
