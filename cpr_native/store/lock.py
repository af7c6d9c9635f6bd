"""The writer's lock of a chain: a POSIX record lock, freed by the system when its process dies."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from contextlib import suppress
from pathlib import Path

from cpr_native.errors import LockedError
from cpr_native.store import files, system

# POSIX gives one process the same lock twice, and closing any descriptor of the file frees it:
# the files locked by this process are kept here. (device, inode, pid)
_held: set[tuple[int, int, int]] = set()
_guard = threading.Lock()


class ChainLock:
    """Holds the file `path` locked from construction to `close`; a forked child does not hold it.

    Raises LockedError when any writer, of this process or another, holds it. The pid in the file is for
    that message only: a file left by a dead process is free. Where the file system has no locks it warns and
    holds nothing: then epochs and the exclusive creation of every commit keep two writers apart. POSIX
    frees the lock as soon as this process opens and closes the file by any other way, so nothing else in the
    package opens it. `required`: without it a lock that another writer holds is left to that one.
    """

    def __init__(self, path: Path, *, required: bool = True) -> None:
        self._calls = calls = system.current()
        self._key = (-1, -1, -1)
        with _guard:
            if files.exists(path) and self._key_of(calls.lstat(str(path))) in _held:
                if not required:
                    return
                raise LockedError(f"{path}: another writer of this process has the checkpoint directory open")
            self._descriptor = calls.open(
                str(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
            )
            try:
                self._key = self._key_of(calls.fstat(self._descriptor))
                self._take(path)
            except OSError as error:
                refusal = self._refusal(path, error)
                calls.close(self._descriptor)
                if not required and isinstance(refusal, LockedError):
                    self._key = (-1, -1, -1)
                    return
                raise refusal from None
            _held.add(self._key)
        with suppress(OSError):  # the pid is for a message only
            calls.ftruncate(self._descriptor, 0)
            calls.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    def _take(self, path: Path) -> None:
        try:
            self._calls.lock(self._descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            warnings.warn(
                f"{path}: this file system has no locks ({error.strerror}): a second writer is not refused "
                "when it opens the directory; the older one is refused at its next commit",
                RuntimeWarning,
                stacklevel=2,
            )

    def _refusal(self, path: Path, error: OSError) -> Exception:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return OSError(error.errno, error.strerror, str(path))
        pid = self._calls.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
        return LockedError(f"{path}: locked by another writer (pid {pid or 'unknown'})")

    @staticmethod
    def _key_of(status: os.stat_result) -> tuple[int, int, int]:
        return status.st_dev, status.st_ino, os.getpid()

    def close(self) -> None:
        """Frees the lock; a second call, or one in a forked child, does nothing."""
        with _guard:
            if self._key not in _held or self._key[2] != os.getpid():
                return
            _held.remove(self._key)
            with suppress(OSError):
                self._calls.ftruncate(self._descriptor, 0)
            with suppress(OSError):  # the descriptor, and with it the lock, is gone all the same
                self._calls.close(self._descriptor)
