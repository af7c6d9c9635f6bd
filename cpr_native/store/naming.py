"""Names of everything in a checkpoint directory; the only place that builds or parses them.

::

    global/          LOCK  manifests/000000000007.json  segments/000000000007-000.safetensors   (dense state)
    shards/<id>/     LOCK  manifests/000000000007.json  segments/000000000007-000.safetensors   (rows)

A *chain* is "global" or "shards/<id>". A segment carries the sequence number of the commit that wrote it,
so a segment without a manifest of its number belongs to an unfinished save.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GLOBAL = "global"
SHARDS = "shards"
LOCK = "LOCK"
MANIFESTS = "manifests"
SEGMENTS = "segments"
MAX_SEQUENCE = 10**12 - 1

_MANIFEST = re.compile(r"([0-9]{12})\.json(\.tmp)?", re.ASCII)
_SEGMENT = re.compile(r"([0-9]{12})-([0-9]{3}|[1-9][0-9]{3,5})\.safetensors", re.ASCII)
_SHARD = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


@dataclass(frozen=True)
class ParsedName:
    """What a file of a chain is, by its name alone; `index` counts the segments of one commit."""

    what: Literal["manifest", "temporary", "segment"]
    sequence: int
    index: int = 0


def shard_chain(shard: int) -> str:
    """Returns the chain of `shard`; raises ValueError for a negative number."""
    if not 0 <= shard < 10**9:
        raise ValueError(f"shard: expected 0..999999999, got {shard}")
    return f"{SHARDS}/{shard}"


def shard_of(chain: str) -> int | None:
    """Returns the shard of `chain`, None for the global one; raises ValueError for any other text."""
    if chain == GLOBAL:
        return None
    directory, _, name = chain.partition("/")
    if directory != SHARDS or not _SHARD.fullmatch(name):
        raise ValueError(f"chain: expected global or shards/<id>, got {chain!r}")
    return int(name)


def chain_path(root: Path, chain: str) -> Path:
    """Returns the directory of `chain`."""
    shard_of(chain)
    return root / chain


def manifest_name(sequence: int) -> str:
    """Returns the file name of the manifest of commit `sequence`; names sort as their numbers."""
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise ValueError(f"sequence: expected 1..{MAX_SEQUENCE}, got {sequence}")
    return f"{sequence:012d}.json"


def temporary_name(sequence: int) -> str:
    """Returns the name a manifest has while it is written."""
    return manifest_name(sequence) + ".tmp"


def segment_name(sequence: int, index: int) -> str:
    """Returns the file name of segment `index` of commit `sequence`."""
    if not 0 <= index <= 999_999:
        raise ValueError(f"segment index: expected 0..999999, got {index}")
    return f"{manifest_name(sequence)[:12]}-{index:03d}.safetensors"


def parse(name: str) -> ParsedName | None:
    """Returns what `name` is; None if no writer of this package makes such a name."""
    if match := _MANIFEST.fullmatch(name):
        parsed = ParsedName("temporary" if match[2] else "manifest", int(match[1]))
    elif match := _SEGMENT.fullmatch(name):
        parsed = ParsedName("segment", int(match[1]), int(match[2]))
    else:
        return None
    return parsed if parsed.sequence else None
