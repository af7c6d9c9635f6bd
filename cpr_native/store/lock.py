"""The writer's lock of a chain: a POSIX record lock, freed by the system when its process dies."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

from cpr_native.errors import LockedError

# POSIX gives one process the same lock twice, and closing any descriptor of the file frees it:
# the files locked by this process are kept here. (device, inode, pid)
_held: set[tuple[int, int, int]] = set()
_guard = threading.Lock()


class ChainLock:
    """Holds the file `path` locked from construction to `close`; a forked child does not hold it.

    Raises LockedError when any writer, of this process or another, holds it. The pid in the file is for
    that message only: a file left by a dead process is free. POSIX frees the lock as soon as this process
    opens and closes the file by any other way, so nothing else in the package opens it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _guard:
            if path.exists() and self._key_of(os.lstat(path)) in _held:
                raise LockedError(f"{path}: another writer of this process has the checkpoint directory open")
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self._key = self._key_of(os.fstat(self._descriptor))
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                pid = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
                os.close(self._descriptor)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise OSError(error.errno, error.strerror, str(path)) from None
                raise LockedError(f"{path}: locked by another writer (pid {pid or 'unknown'})") from None
            _held.add(self._key)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, b"%d\n" % os.getpid())

    @staticmethod
    def _key_of(status: os.stat_result) -> tuple[int, int, int]:
        return status.st_dev, status.st_ino, os.getpid()

    def close(self) -> None:
        """Frees the lock; a second call, or one in a forked child, does nothing."""
        with _guard:
            if self._key not in _held or self._key[2] != os.getpid():
                return
            os.ftruncate(self._descriptor, 0)
            _held.remove(self._key)
            os.close(self._descriptor)
