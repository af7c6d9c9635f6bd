"""A mounted file system under a file:// URL: exclusive by link, durable by sync."""

from __future__ import annotations

import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cpr_native.store import files, system
from cpr_native.store.remote import UPLOADING, Objects, Parts, file_size, part_ranges, read_part


class LocalObjects(Objects):
    """Files of a directory; see `Objects`."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        super().__init__(url, system, root)
        self._parts = Parts()
        self._own = uuid.uuid4().hex  # another writer may upload the same name

    def _create(self, name: str, data: bytes) -> None:
        temporary = self._temporary(name)
        self._write(temporary, 0, data)
        self._link(temporary, name)

    def upload(self, name: str, source: Path) -> None:
        """See `Objects.upload`."""
        temporary = self._temporary(name)
        accepted: set[int] = self._parts.of(name).setdefault("accepted", set())
        for begin, end in part_ranges(file_size(source)):
            if begin not in accepted:
                data = read_part(source, begin, end)
                self.retry(name, partial(self._write, temporary, begin, data))
                accepted.add(begin)
        try:
            self.retry(name, partial(self._link, temporary, name))
        except FileExistsError:
            self._parts.drop(name)
            raise
        self._parts.drop(name)

    def _temporary(self, name: str) -> str:
        return f"{self.path(name)}.{self._own}{UPLOADING}"

    def _write(self, target: str, begin: int, data: bytes) -> None:
        if begin == 0:
            files.make_directory(Path(target).parent)
        with self.system.open(target, "r+b" if begin else "wb") as file:
            file.seek(begin)
            file.write(data)
            file.flush()
            system.current().fsync(file.fileno())

    def _link(self, temporary: str, name: str) -> None:
        try:
            self.system.link(temporary, self.path(name))
            files.sync_directory(Path(temporary).parent)
        except FileExistsError:
            self._discard(temporary)
            raise
        self._discard(temporary)

    def _discard(self, temporary: str) -> None:
        with suppress(OSError):  # what cannot be removed is left to the next writer
            self.system.rm_file(temporary)
