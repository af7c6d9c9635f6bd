"""`SharedMemory`: a file, or memory held by a keeper process, in which tables are built."""

from __future__ import annotations

import errno
import json
import os
from contextvars import ContextVar, Token
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cpr_native._native import Region
from cpr_native.errors import LockedError, SchemaMismatchError
from cpr_native.shared import keeper

_current: ContextVar[SharedMemory | None] = ContextVar("cpr_native.shared", default=None)


def current() -> SharedMemory | None:
    """Return the memory in whose `with` block this is, None outside of any."""
    return _current.get()


class SharedMemory:
    """Memory of tables that outlives the process; the next one attaches to it and reads nothing.

    Modules with a fused optimizer that are built inside `with SharedMemory(path):` have their rows,
    optimizer state and trackers in it; a `RecoveryManager(..., shared=memory)` keeps there what belongs to no
    row. The next process makes the same object, builds the same modules in it in the same order, and
    `manager.resume()` goes on from the last step.

    `path`: a file, made if it is missing, on tmpfs (`/dev/shm`) or a disk: its bytes are those of the
    tables, 8 or 16 a row of trackers and two times the dense state. Without room for them OSError (ENOSPC)
    is raised at once. `every`: steps between two commits of the dense state; at most as many batches are
    lost. `discard`: a file with a torn header, of another version or with other tables begins anew, instead
    of CorruptionError, CprError or SchemaMismatchError; `refused` says why. So does, always, one that no
    step was committed to, or that was written before the machine was last started. Any other kind of file
    raises ValueError, and LockedError is raised while a process (this one too) is using it: that ends with
    the last table in it.
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1, discard: bool = False) -> None:
        where = Path(path).absolute()
        descriptor = os.open(where, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._attach(descriptor, str(where), every, discard)

    @classmethod
    def keeper(cls, name: str, *, every: int = 1, discard: bool = False) -> SharedMemory:
        """Return memory that a process of its own holds, which is started unless it runs; no file has it.

        It is bound by the memory of the machine, not by the size of a file system (a container's /dev/shm is
        often 64 MB). `name`: letters, digits, `-`, `_`, `.`; one memory for each, per user. `cpr-native keep
        NAME` runs the process too; it ends, and the memory is freed, by `cpr-native keep --stop NAME`.
        Raises ValueError for a bad name, OSError when the process can't be started.
        """
        made = cls.__new__(cls)
        made._attach(keeper.descriptor(name), f"keeper {name}", every, discard)
        return made

    def _attach(self, descriptor: int, name: str, every: int, discard: bool) -> None:
        if every < 1:
            os.close(descriptor)
            raise ValueError(f"every: expected at least 1 step, got {every}")
        self.name = name
        self.every = every
        self._discard = discard
        self._tokens: list[Token[SharedMemory | None]] = []
        try:
            self.region = Region(descriptor, name, discard=discard)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            raise LockedError(f"{name}: {error.strerror}") from None

    @property
    def attached(self) -> bool:
        """Whether the tables are those that an earlier process left."""
        return self.region.attached

    @property
    def refused(self) -> str | None:
        """Why what an earlier process left began anew; None if it did not, or left nothing."""
        return self.region.reason or None

    def claim(self, layout: list[dict[str, Any]]) -> Region:
        """Return the memory for the next module, whose tables `layout` describes.

        Raises SchemaMismatchError, naming the first difference, for others than those that are there.
        """
        before = self.region.describe(json.dumps(layout))
        if before:
            difference = _difference(layout, before)
            if not self._discard:
                raise SchemaMismatchError(f"{self.name}: {difference}")
            self.region.reset(difference)
            self.region.describe(json.dumps(layout))
        return self.region

    def __enter__(self) -> SharedMemory:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())


def _difference(layout: list[dict[str, Any]], before: str) -> str:
    """Return the first difference of two layouts; that of the process before is JSON or no layout at all."""
    try:
        there = json.loads(before)
    except ValueError:
        return "expected tables, got none: the process before built fewer modules in it"
    for here, left in zip_longest(layout, there):
        if here is None or left is None:
            return f"expected {len(there)} tables as the process before, got {len(layout)}"
        for key in here:
            if here[key] != left.get(key):
                name = here.get("name", "tables")
                return f"{name}: {key}: expected {left.get(key)!r} as the process before, got {here[key]!r}"
    return "the tables differ from those of the process before"
