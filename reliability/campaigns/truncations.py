"""Cuts every file of a small checkpoint directory at every length, one at a time, and lengthens it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaigns.command import main
from campaigns.damage import change_all, processors
from campaigns.tiny import tiny_directory


def shortened(_path: Path, good: bytes) -> Iterator[bytes]:
    """The first n bytes of a file for every n, and the file with a byte, a line or itself after it."""
    for size in range(len(good)):
        yield good[:size]
    for more in (b"\0", b"\n", good):
        yield good + more


def run(*, whole_every: int = 1, processes: int = 0) -> dict[str, Any]:
    """Cut at each length; show it to the file's readers, each `whole_every`-th to a restore too."""
    return change_all(tiny_directory, shortened, whole_every=whole_every, processes=processes or processors())


if __name__ == "__main__":
    main(run)
