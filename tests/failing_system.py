"""A disk on which calls that change something fail."""

from __future__ import annotations

from cpr_native.store.system import System


class Failing(System):
    """Raises an OSError in calls `first` to `last` of those that change something, and counts them."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.calls = first, last, 0

    def _call(self) -> None:
        self.calls += 1
        if self.first <= self.calls <= self.last:
            raise OSError(28, "No space left on device")

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._call()
        return super().pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        self._call()
        super().fsync(fd)

    def link(self, source: str, target: str) -> None:
        self._call()
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self._call()
        super().unlink(path)


def failing_once(at: int) -> Failing:
    """Call `at` fails, none for 0."""
    return Failing(at, at)


def failing_from(at: int) -> Failing:
    """Call `at` fails and all after it, as on a full or unplugged disk."""
    return Failing(at, 2**63)
