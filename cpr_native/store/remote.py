"""Objects of a remote checkpoint through fsspec: listing, range reads, exclusive creation, uploads."""

from __future__ import annotations

import errno
import importlib
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cpr_native.store import files

T = TypeVar("T")

PART_BYTES = 8 * 2**20  # S3 takes parts of 5 MiB and more
ATTEMPTS = 5
FIRST_DELAY = 0.5  # seconds; doubled after each attempt
UPLOADING = ".uploading"  # ends the names of unfinished uploads
_ANY_SIZE = 2**62

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.", re.ASCII)
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a URL (`scheme://...`) and not a path of this machine."""
    return isinstance(path, str) and _URL.match(path) is not None


def connect(url: str, options: Mapping[str, Any] | None = None) -> Objects:
    """Returns the objects under `url`; `options` go to its fsspec file system. Nothing is read yet.

    Raises ModuleNotFoundError when fsspec or the package of that protocol is missing, ValueError for a
    protocol that fsspec doesn't know.
    """
    needs = "needs fsspec, and s3fs for s3://: pip install 'cpr-native[remote]'"
    given = dict(options or {})
    if url.partition("://")[0] in ("s3", "s3a"):
        given.setdefault("config_kwargs", {"retries": {"max_attempts": 1}})  # tried again here
    try:
        core = importlib.import_module("fsspec.core")
        system, root = core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **given)
    except ImportError as error:
        raise ModuleNotFoundError(f"{url}: {needs} ({error})") from None
    protocols = (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)
    kind = Objects
    if hasattr(system, "call_s3"):
        from cpr_native.store.remote_s3 import S3Objects as kind
    elif "file" in protocols:
        from cpr_native.store.remote_local import LocalObjects as kind
    return kind(url.rstrip("/"), system, root.rstrip("/"))


class Objects:
    """Objects by names relative to the URL, such as "global/manifests/000000000001.json". Thread-safe.

    What a broken connection can explain is tried `ATTEMPTS` times. Errors are OSError with the object's URL;
    FileNotFoundError, FileExistsError and PermissionError at once.
    """

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.url = url
        self.system = system
        self.root = root

    def path(self, name: str) -> str:
        """Returns the path of an object in its file system."""
        return f"{self.root}/{name}"

    def retry(self, name: str, call: Callable[[], T]) -> T:
        """Returns what `call` returns, tried again with growing pauses after errors that may pass."""
        delay = FIRST_DELAY
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                return call()
            except Exception as error:
                if left == 0 or isinstance(error, _FINAL):
                    raise self._error(name, error) from error
            time.sleep(delay * (0.5 + random.random()))
            delay *= 2
        raise AssertionError

    def _error(self, name: str, error: Exception) -> OSError:
        url = f"{self.url}/{name}"
        if isinstance(error, OSError):
            number = error.errno or _ERRNO.get(type(error), errno.EIO)
            return OSError(number, error.strerror or str(error) or type(error).__name__, url)
        return OSError(errno.EIO, f"{type(error).__name__}: {error}", url)

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the names of all objects under `folder` and their sizes in bytes; none if there is none."""
        path = self.path(folder)

        def listed() -> Any:
            try:
                return self.system.find(path, detail=True)
            except FileNotFoundError:
                return {}

        self.system.invalidate_cache()
        found = self.retry(folder, listed)
        return {
            info["name"][len(path) - len(folder) :]: int(info["size"])
            for info in found.values()
            if info["type"] == "file" and info["name"].startswith(path + "/")
        }

    def size(self, name: str) -> int:
        """Returns the bytes of an object; raises FileNotFoundError."""
        self.system.invalidate_cache()
        return int(self.retry(name, lambda: self.system.info(self.path(name)))["size"])

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Returns bytes [begin, end) of an object, or all of it."""

        def call() -> bytes:
            limits = {} if end is None else {"start": begin, "end": end}
            data = bytes(self.system.cat_file(self.path(name), **limits))
            if end is not None and len(data) != end - begin:
                raise OSError(errno.EIO, f"expected {end - begin} bytes at {begin}, got {len(data)}")
            return data

        return self.retry(name, call)

    def create(self, name: str, data: bytes) -> None:
        """Makes an object that must not exist; raises FileExistsError."""
        self.retry(name, lambda: self._create(name, data))

    def _create(self, name: str, data: bytes) -> None:
        try:
            self.system.pipe_file(self.path(name), data, mode="create")
        except (TypeError, ValueError, NotImplementedError):
            self._create_checked(name, data)

    def _create_checked(self, name: str, data: bytes) -> None:
        """For a file system without exclusive creation: two writers in the same instant both succeed."""
        if self.system.exists(self.path(name)):
            raise FileExistsError(errno.EEXIST, "exists")
        self.system.pipe_file(self.path(name), data)

    def upload(self, name: str, source: Path) -> None:
        """Makes an object that must not exist of a local file; raises FileExistsError, OSError.

        Where the file system takes parts, one that was accepted is not sent again by a later call.
        """
        self.create(name, read_part(source, 0, file_size(source)))

    def remove(self, name: str) -> None:
        """Removes an object; a missing one is as good."""

        def call() -> None:
            try:
                self.system.rm_file(self.path(name))
            except FileNotFoundError:
                return

        self.retry(name, call)

    def abandon(self, folder: str) -> None:
        """Drops what unfinished uploads of any process have left under `folder`."""
        for name in self.sizes(folder):
            if name.endswith(UPLOADING):
                self.remove(name)


_ERRNO: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    TimeoutError: errno.ETIMEDOUT,
}


class Parts:
    """Which parts of each unfinished upload were accepted, as long as the process lives. Thread-safe."""

    def __init__(self) -> None:
        self._uploads: dict[str, dict[str, Any]] = {}
        self._guard = threading.Lock()

    def of(self, name: str) -> dict[str, Any]:
        """Returns the notes of one upload; empty for a new one."""
        with self._guard:
            return self._uploads.setdefault(name, {})

    def drop(self, name: str) -> None:
        """Forgets an upload."""
        with self._guard:
            self._uploads.pop(name, None)


def file_size(path: Path) -> int:
    """Returns the bytes of a local file; raises CorruptionError when it is missing."""
    with files.opened(path, _ANY_SIZE) as (_, size):
        return size


def read_part(path: Path, begin: int, end: int) -> bytes:
    """Returns bytes [begin, end) of a local file."""
    with files.opened(path, _ANY_SIZE) as (descriptor, _):
        return files.read_at(descriptor, begin, end - begin).tobytes()


def part_ranges(size: int) -> list[tuple[int, int]]:
    """Returns the parts of `size` bytes as [begin, end)."""
    return [(begin, min(begin + PART_BYTES, size)) for begin in range(0, size, PART_BYTES)]
