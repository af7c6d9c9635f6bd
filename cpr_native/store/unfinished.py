"""Files of a chain that no commit has: what a writer that died has left."""

from __future__ import annotations

from pathlib import Path

from cpr_native.store import files, naming


def highest_sequence(chain: Path) -> int:
    """Returns the highest sequence number of a file, of a commit or not; 0 without any. Raises OSError."""
    names = [name for d in (naming.MANIFESTS, naming.SEGMENTS) for name in files.list_directory(chain / d)]
    return max((parsed.sequence for parsed in map(naming.parse, names) if parsed), default=0)


def remove_unfinished(chain: Path) -> None:
    """Removes temporary manifests, and segments of sequence numbers that no manifest has; raises OSError."""
    manifests, segments = chain / naming.MANIFESTS, chain / naming.SEGMENTS
    committed = set()
    for name in files.list_directory(manifests):
        found = naming.parse(name)
        if found and found.what == "manifest":
            committed.add(found.sequence)
        elif found and found.what == "temporary":
            files.remove(manifests / name)
    for name in files.list_directory(segments):
        found = naming.parse(name)
        if found and found.what == "segment" and found.sequence not in committed:
            files.remove(segments / name)
