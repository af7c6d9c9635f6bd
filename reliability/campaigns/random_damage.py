"""Damages the files of a larger checkpoint directory as disks and file systems do: runs of bytes, sectors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from campaigns.command import main
from campaigns.damage import change_all, processors
from campaigns.tiny import larger_directory

_SECTOR = 512


def damaged(times: int, seed: int, path: Path, good: bytes) -> Iterator[bytes]:
    """Random damage to a file, `times` over; the same for a file of the same name."""
    random = Random(f"{seed} {path.parent.parent.name} {path.name}")
    for _ in range(times):
        yield random.choice(_KINDS)(bytearray(good), random)


def _scattered(data: bytearray, random: Random) -> bytes:
    for _ in range(random.randint(1, 64)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


def _run_of_bytes(data: bytearray, random: Random) -> bytes:
    begin = random.randrange(len(data))
    end = min(len(data), begin + random.randint(1, 4096))
    data[begin:end] = random.randbytes(end - begin)
    return bytes(data)


def _sector(data: bytearray, random: Random) -> bytes:
    begin = random.randrange(0, len(data), _SECTOR)
    end = min(len(data), begin + _SECTOR * random.randint(1, 8))
    data[begin:end] = random.choice([b"\0", b"\xff"]) * (end - begin)
    return bytes(data)


def _swapped(data: bytearray, random: Random) -> bytes:
    size = random.randint(1, max(1, len(data) // 4))
    one, other = (random.randrange(max(1, len(data) - size)) for _ in range(2))
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]
    return bytes(data)


def _lost(data: bytearray, random: Random) -> bytes:
    begin = random.randrange(len(data))
    del data[begin : begin + random.randint(1, _SECTOR)]
    return bytes(data)


def _repeated(data: bytearray, random: Random) -> bytes:
    begin = random.randrange(len(data))
    piece = data[begin : begin + random.randint(1, _SECTOR)]
    at = random.randrange(len(data))
    data[at:at] = piece
    return bytes(data)


_KINDS = (_scattered, _run_of_bytes, _sector, _swapped, _lost, _repeated)


def run(*, times: int = 500, seed: int = 0, whole_every: int = 4, processes: int = 0) -> dict[str, Any]:
    """Damage each file `times` over; each `whole_every`-th is shown to `verify` and a restore too."""
    return change_all(
        larger_directory,
        partial(damaged, times, seed),
        whole_every=whole_every,
        processes=processes or processors(),
    )


if __name__ == "__main__":
    main(run)
