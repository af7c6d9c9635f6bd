"""What is in a checkpoint directory, and what is wrong with it. No lock is taken, nothing is written."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store import files, naming
from cpr_native.store.chain import ChainReader
from cpr_native.store.directory import Directory
from cpr_native.store.manifest import Manifest
from cpr_native.store.placement import Placement
from cpr_native.store.points import CheckpointStore
from cpr_native.store.remote import is_url
from cpr_native.store.schema import CollectionSchema


@dataclass(frozen=True, kw_only=True)
class CommitSummary:
    """One commit: `rows` of each table and `bytes` of its segments; `live` unless on an abandoned branch."""

    sequence: int
    kind: str
    step: int
    samples: int
    incarnation: int
    parent: int | None
    segments: int
    rows: dict[str, int]
    bytes: int
    live: bool


@dataclass(frozen=True, kw_only=True)
class ChainSummary:
    """One chain ("global" or "shards/<id>"), oldest commit first; `unfinished` are files never committed."""

    chain: str
    commits: tuple[CommitSummary, ...]
    bytes: int
    unfinished: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DirectorySummary:
    """A checkpoint directory by its manifests; `problems` are those of reading them alone."""

    path: str
    run_id: str
    schema: CollectionSchema
    placement: Placement
    chains: tuple[ChainSummary, ...]
    problems: tuple[str, ...]


def inspect(path: str | os.PathLike[str]) -> DirectorySummary:
    """Returns what the manifests say, of a directory or a URL; segments are not read.

    Raises NoCheckpointError when no global one is intact, OSError.
    """
    store = CheckpointStore(path)
    directory = store.directory()
    identity = directory.whole.identity
    if identity is None:
        raise NoCheckpointError(f"{directory.path}: no intact manifest in {naming.GLOBAL}/{naming.MANIFESTS}")
    problems: list[str] = []
    chains = tuple(_summary(reader, problems) for reader in _readers(directory))
    return DirectorySummary(
        path=str(store),
        run_id=identity.run_id,
        schema=identity.schema,
        placement=identity.placement,
        chains=chains,
        problems=tuple(problems),
    )


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Reads every byte of every commit, abandoned ones too; returns the problems found.

    Checked: each file's CRC, size and bounds; schema, placement and run the same everywhere; rows within
    shard and table; parents and shard commits present and the very ones named; no foreign file. Files of
    unfinished saves are no problem. What is behind a URL is brought into a new temporary folder for it.
    Raises NoCheckpointError when `path` holds no commit at all; OSError.
    """
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="cpr-native-verify-") as folder:
            return _verify(CheckpointStore(path, cache=folder).directory())
    return _verify(Directory(Path(path)))


def _verify(directory: Directory) -> list[str]:
    readers = _readers(directory)
    if not any(reader.sequences for reader in readers):
        raise NoCheckpointError(f"{directory.path}: holds no checkpoint")
    problems: list[str] = []
    for reader in readers:
        problems += _foreign_files(reader)
        for sequence in reader.sequences:
            try:
                manifest, _ = reader.load(sequence)
                reader.check_segments(manifest)
            except CorruptionError as error:
                problems.append(str(error))
                continue
            problems += _bad_links(reader, manifest, directory)
    return list(dict.fromkeys(problems))


def _readers(directory: Directory) -> list[ChainReader]:
    shards = [naming.shard_of(f"{naming.SHARDS}/{name}") for name in _shard_names(directory.path)]
    identity = directory.whole.identity
    expected = range(identity.placement.shards) if identity else ()
    return [
        directory.whole,
        *(directory.shard(s) for s in sorted({*expected, *(s for s in shards if s is not None)})),
    ]


def _shard_names(path: Path) -> list[str]:
    names = []
    for name in files.list_directory(path / naming.SHARDS):
        try:
            naming.shard_of(f"{naming.SHARDS}/{name}")
        except ValueError:
            continue
        names.append(name)
    return names


def _bad_links(reader: ChainReader, manifest: Manifest, directory: Directory) -> list[str]:
    problems = []
    needs = manifest.exact_parent if manifest.kind != "base" and reader.shard is not None else None
    if _newest_base(reader) > manifest.sequence:
        needs = None  # of no point that is left, should retention have been interrupted
    for ref in (manifest.parent, manifest.grandparent, manifest.exact_parent):
        if ref is not None and (ref == needs or not reader.is_pruned(ref)):
            try:
                reader.follow(ref)
            except CorruptionError as error:
                problems.append(str(error))
    for shard, ref in manifest.commits.items():
        try:
            directory.shard(shard).follow(ref)
        except CorruptionError as error:
            problems.append(str(error))
    return problems


def _newest_base(reader: ChainReader) -> int:
    """Returns the sequence of the newest intact base; 0 for none."""
    for sequence in reversed(reader.sequences):
        try:
            if reader.load(sequence)[0].kind == "base":
                return sequence
        except CorruptionError:
            continue
    return 0


def _foreign_files(reader: ChainReader) -> list[str]:
    problems = []
    for directory, kinds in ((naming.MANIFESTS, ("manifest", "temporary")), (naming.SEGMENTS, ("segment",))):
        for name in files.list_directory(reader.path / directory):
            parsed = naming.parse(name)
            if parsed is None or parsed.what not in kinds:
                problems.append(f"{reader.path / directory / name}: not a file of a checkpoint")
    return problems


def _summary(reader: ChainReader, problems: list[str]) -> ChainSummary:
    live: set[int] = set()
    at = reader.newest([])
    while at is not None:
        live.add(at[1].sequence)
        try:
            at = (reader.follow(at[0].parent), at[0].parent) if at[0].parent else None
        except CorruptionError:
            at = None
    commits = []
    for sequence in reader.sequences:
        try:
            manifest, _ = reader.load(sequence)
        except CorruptionError as error:
            problems.append(str(error))
            continue
        commits.append(
            CommitSummary(
                sequence=sequence,
                kind=manifest.kind,
                step=manifest.step,
                samples=manifest.samples,
                incarnation=manifest.incarnation,
                parent=manifest.parent.sequence if manifest.parent else None,
                segments=len(manifest.segments),
                rows=manifest.rows,
                bytes=manifest.bytes,
                live=sequence in live,
            )
        )
    return ChainSummary(
        chain=reader.chain,
        commits=tuple(commits),
        bytes=sum(commit.bytes for commit in commits),
        unfinished=tuple(_unfinished(reader)),
    )


def _unfinished(reader: ChainReader) -> list[str]:
    names = [
        *files.list_directory(reader.path / naming.MANIFESTS),
        *files.list_directory(reader.path / naming.SEGMENTS),
    ]
    parsed = {name: naming.parse(name) for name in names}
    return [
        name
        for name, p in parsed.items()
        if p and (p.what == "temporary" or (p.what == "segment" and p.sequence not in reader.sequences))
    ]
