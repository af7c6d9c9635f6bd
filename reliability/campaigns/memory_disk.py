"""A file system in memory that knows what a crash would leave of it.

Files and directories have what programs see and what is durable: the bytes of a file as of its last sync, the
entries of a directory as of its own. Nothing else is promised, as POSIX promises nothing else.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from random import Random

from cpr_native.store.system import System

_devices = itertools.count(1)
ROOT = 1
PAGE = 512


@dataclass(frozen=True)
class Node:
    """A file (bytes) or a directory (names to node numbers): as programs see it, and as it is durable."""

    data: bytes = b""
    durable_data: bytes = b""
    entries: dict[str, int] | None = None
    durable_entries: dict[str, int] = field(default_factory=dict)


Nodes = dict[int, Node]


def after_kill(nodes: Nodes) -> Nodes:
    """What a process leaves that is killed: all that it wrote."""
    return dict(nodes)


def after_power_loss(nodes: Nodes) -> Nodes:
    """What is left when nothing reached the disk but what was synced."""
    return {
        number: replace(node, data=node.durable_data, entries=node.entries and dict(node.durable_entries))
        for number, node in nodes.items()
    }


def after_torn_writes(nodes: Nodes, random: Random) -> Nodes:
    """What is left when of all that was not synced some reached the disk, in any order."""
    return {number: _torn(node, random) for number, node in nodes.items()}


def _torn(node: Node, random: Random) -> Node:
    if node.entries is None:
        size = random.choice([len(node.data), len(node.durable_data)])
        kept = bytearray(node.durable_data[:size].ljust(size, b"\0"))
        for at in range(0, size, PAGE):
            if random.random() < 0.5:
                kept[at : at + PAGE] = node.data[at : min(at + PAGE, size)].ljust(min(PAGE, size - at), b"\0")
        return replace(node, data=bytes(kept))
    entries = {}
    for name in sorted({*node.entries, *node.durable_entries}):
        found = random.choice([node.entries, node.durable_entries]).get(name)
        if found is not None:
            entries[name] = found
    return replace(node, entries=entries)


def _error(code: int, path: str = "") -> OSError:
    return OSError(code, os.strerror(code), *([path] if path else []))


class MemoryDisk(System):
    """A disk with the nodes of another's state, or an empty one.

    before: is told the name of each call before anything happens, one at a time, and may raise OSError.
    """

    def __init__(self, nodes: Nodes | None = None, before: Callable[[str], None] | None = None) -> None:
        self.nodes: Nodes = dict(nodes or {ROOT: Node(entries={})})
        self.before = before or (lambda call: None)
        self._device = next(_devices)
        self._numbers = itertools.count(max(self.nodes) + 1)
        self._descriptors = itertools.count(10**6)
        self._open: dict[int, int] = {}
        self._locked: set[int] = set()
        self._guard = threading.RLock()

    @property
    def open_files(self) -> int:
        """How many descriptors are open."""
        return len(self._open)

    def _find(self, path: str) -> int:
        number = ROOT
        for name in PurePosixPath(path).parts[1:]:
            entries = self.nodes[number].entries
            if entries is None:
                raise _error(errno.ENOTDIR, path)
            if name not in entries:
                raise _error(errno.ENOENT, path)
            number = entries[name]
        return number

    def _folder(self, path: str) -> tuple[int, str, dict[str, int]]:
        """The directory of a path, the last name, and a copy of the directory's entries."""
        number = self._find(str(PurePosixPath(path).parent))
        entries = self.nodes[number].entries
        if entries is None:
            raise _error(errno.ENOTDIR, path)
        return number, PurePosixPath(path).name, dict(entries)

    def _enter(self, path: str, node: Node | int) -> int:
        folder, name, entries = self._folder(path)
        if name in entries:
            raise _error(errno.EEXIST, path)
        number = node if isinstance(node, int) else next(self._numbers)
        if isinstance(node, Node):
            self.nodes[number] = node
        entries[name] = number
        self.nodes[folder] = replace(self.nodes[folder], entries=entries)
        return number

    def _node(self, fd: int) -> tuple[int, Node]:
        if fd not in self._open:
            raise _error(errno.EBADF)
        return self._open[fd], self.nodes[self._open[fd]]

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        with self._guard:
            self.before("open")
            try:
                number = self._find(path)
                if flags & os.O_CREAT and flags & os.O_EXCL:
                    raise _error(errno.EEXIST, path)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                number = self._enter(path, Node())
            if flags & os.O_DIRECTORY and self.nodes[number].entries is None:
                raise _error(errno.ENOTDIR, path)
            descriptor = next(self._descriptors)
            self._open[descriptor] = number
            return descriptor

    def close(self, fd: int) -> None:
        with self._guard:
            number, _ = self._node(fd)
            del self._open[fd]  # closed even if the call then fails, as on Linux
            self._locked.discard(number)
            self.before("close")

    def _status(self, number: int) -> os.stat_result:
        node = self.nodes[number]
        kind = stat.S_IFREG if node.entries is None else stat.S_IFDIR
        return os.stat_result((kind | 0o666, number, self._device, 1, 0, 0, len(node.data), 0, 0, 0))

    def fstat(self, fd: int) -> os.stat_result:
        with self._guard:
            self.before("fstat")
            return self._status(self._node(fd)[0])

    def lstat(self, path: str) -> os.stat_result:
        with self._guard:
            self.before("lstat")
            return self._status(self._find(path))

    def listdir(self, fd: int) -> list[str]:
        with self._guard:
            self.before("listdir")
            return list(self._node(fd)[1].entries or ())

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._guard:
            self.before("pread")
            return self._node(fd)[1].data[offset : offset + size]

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        with self._guard:
            self.before("pwrite")
            number, node = self._node(fd)
            old = node.data.ljust(offset, b"\0")
            new = old[:offset] + bytes(data) + old[offset + len(data) :]
            self.nodes[number] = replace(node, data=new)
            return len(data)

    def fsync(self, fd: int) -> None:
        with self._guard:
            self.before("fsync")
            number, node = self._node(fd)
            self.nodes[number] = replace(
                node, durable_data=node.data, durable_entries=dict(node.entries or {})
            )

    def fdatasync(self, fd: int) -> None:
        with self._guard:
            self.before("fdatasync")
            number, node = self._node(fd)
            self.nodes[number] = replace(node, durable_data=node.data)

    def ftruncate(self, fd: int, size: int) -> None:
        with self._guard:
            self.before("ftruncate")
            number, node = self._node(fd)
            self.nodes[number] = replace(node, data=node.data[:size].ljust(size, b"\0"))

    def mkdir(self, path: str) -> None:
        with self._guard:
            self.before("mkdir")
            self._enter(path, Node(entries={}))

    def link(self, source: str, target: str) -> None:
        with self._guard:
            self.before("link")
            self._enter(target, self._find(source))

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            self.before("rename")
            number = self._find(source)
            if number == self._folder(target)[2].get(PurePosixPath(target).name):
                return  # two names of one file: as on Linux
            for path, entry in ((source, None), (target, number)):
                folder, name, entries = self._folder(path)
                entries.pop(name, None)
                self.nodes[folder] = replace(
                    self.nodes[folder], entries=entries if entry is None else {**entries, name: entry}
                )

    def unlink(self, path: str) -> None:
        with self._guard:
            self.before("unlink")
            folder, name, entries = self._folder(path)
            if name not in entries:
                raise _error(errno.ENOENT, path)
            del entries[name]
            self.nodes[folder] = replace(self.nodes[folder], entries=entries)

    def lock(self, fd: int) -> None:
        with self._guard:
            self.before("lock")
            number, _ = self._node(fd)
            if number in self._locked:
                raise _error(errno.EAGAIN)
            self._locked.add(number)
