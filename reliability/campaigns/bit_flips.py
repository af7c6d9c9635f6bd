"""Flips every bit of every file of a small checkpoint directory, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaigns.command import main
from campaigns.damage import change_all, processors
from campaigns.tiny import tiny_directory


def flipped(_path: Path, good: bytes) -> Iterator[bytes]:
    """The bytes of a file with each bit flipped in turn."""
    for bit in range(len(good) * 8):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        yield bytes(data)


def run(*, whole_every: int = 1, processes: int = 0) -> dict[str, Any]:
    """Flip each bit; show it to the file's readers, each `whole_every`-th to `verify` and a restore too."""
    return change_all(tiny_directory, flipped, whole_every=whole_every, processes=processes or processors())


if __name__ == "__main__":
    main(run)
