"""The store's system calls but the segment writer's. Reads refuse links; a write is durable on return."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CorruptionError

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
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the entries of a directory durable; raises OSError with its path."""
    descriptor = os.open(path, _READ | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def list_directory(path: Path) -> list[str]:
    """Returns the sorted names in a directory, none if it does not exist; a link to one raises OSError."""
    try:
        descriptor = os.open(path, _READ | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return sorted(os.listdir(descriptor))
    finally:
        os.close(descriptor)


@contextmanager
def opened(path: Path, max_size: int) -> Iterator[tuple[int, int]]:
    """Opens a regular file for reading; gives its descriptor and size in bytes.

    Errors of the system inside the block become, like those of opening it, CorruptionError (missing, a link,
    no regular file, over `max_size` bytes, unreadable on its disk), or OSError with `path` for what says
    nothing about the file (permission, descriptors, memory).
    """
    try:
        descriptor = os.open(path, _READ | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "expected a regular file")
            if status.st_size > max_size:
                raise OSError(errno.EFBIG, f"expected at most {max_size} bytes, got {status.st_size}")
            yield descriptor, status.st_size
        finally:
            os.close(descriptor)
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
    data = np.empty(size, np.uint8)
    filled = 0
    while filled < size:
        got = os.preadv(descriptor, [data[filled:].data], offset + filled)
        if got == 0:
            raise OSError(errno.EIO, f"file ends at {offset + filled}, before {offset + size} bytes")
        filled += got
    return data


def reading_threads() -> int:
    """Returns how many threads read a file: the processors of this process, at most 8."""
    return min(8, len(os.sched_getaffinity(0)))


def write_new(path: Path, data: bytes) -> None:
    """Creates `path`, which must not exist, with `data` and syncs it; on OSError removes it again."""
    descriptor = os.open(path, _CREATE, 0o666)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        remove(path)
        raise OSError(error.errno, error.strerror, str(path)) from None


def link_new(source: Path, target: Path) -> None:
    """Gives `source` the second name `target`, which must not exist: the exclusive step of a commit."""
    os.link(source, target)


def remove(path: Path) -> None:
    """Removes a file; a missing one is as good."""
    path.unlink(missing_ok=True)
