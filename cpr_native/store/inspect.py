"""What is in a checkpoint directory, and what is wrong with it. No lock is taken, nothing is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store import files, naming
from cpr_native.store.chain import ChainReader, exact_ref, read_commits
from cpr_native.store.directory import Directory
from cpr_native.store.manifest import EXACT_KINDS, Manifest, Ref
from cpr_native.store.placement import Placement
from cpr_native.store.points import CheckpointStore
from cpr_native.store.remote import is_url
from cpr_native.store.restore import before, exact_plan
from cpr_native.store.schema import CollectionSchema

_BATCH_BYTES = 256 * 2**20
_MOST_COMMITS = 64


@dataclass(frozen=True, kw_only=True)
class CommitSummary:
    """One commit: `rows` of each table and `bytes` of its segments; `live` unless on an abandoned branch.

    `replaces`: the commit that compaction made it to be read for, if so; `shard_commits`: of the global
    chain, the commit of each shard that belongs to it.
    """

    sequence: int
    kind: str
    step: int
    samples: int
    incarnation: int
    parent: int | None
    replaces: int | None
    segments: int
    rows: dict[str, int]
    bytes: int
    live: bool
    shard_commits: dict[int, int]


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

    def saved(self, commit: CommitSummary) -> tuple[int, int]:
        """Returns rows and bytes of a global commit with its shards', as far as they are still there."""
        rows, size = 0, commit.bytes
        for chain in self.chains[1:]:
            shard = naming.shard_of(chain.chain)
            named = None if shard is None else commit.shard_commits.get(shard)
            for other in chain.commits:
                if other.sequence == named:
                    rows += sum(other.rows.values())
                    size += other.bytes
        return rows, size


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


def verify(path: str | os.PathLike[str], *, watch: Callable[[int, int], object] | None = None) -> list[str]:
    """Reads every byte of every commit, abandoned ones too; returns the problems found.

    Checked: each file's CRC, size and bounds; schema, placement and run the same everywhere; rows within
    shard and table; parents and shard commits present and the very ones named; no foreign file. Files of
    unfinished saves are no problem. What is behind a URL is brought into a new temporary folder for it.
    watch: is told the bytes read so far and those in all.
    Raises NoCheckpointError when `path` holds no commit at all; OSError.
    """
    if is_url(path):
        with tempfile.TemporaryDirectory(prefix="cpr-native-verify-") as folder:
            return _verify(CheckpointStore(path, cache=folder).directory(), watch)
    return _verify(Directory(Path(path)), watch)


def _verify(directory: Directory, watch: Callable[[int, int], object] | None) -> list[str]:
    readers = _readers(directory)
    if not any(reader.sequences for reader in readers):
        raise NoCheckpointError(f"{directory.path}: holds no checkpoint")
    problems: list[str] = []
    commits: list[tuple[ChainReader, Manifest]] = []
    for reader in readers:
        problems += _foreign_files(reader)
        for sequence in reader.sequences:
            try:
                commits.append((reader, reader.load(sequence)[0]))
            except CorruptionError as error:
                problems.append(str(error))
    _read_all(commits, watch)
    live = {reader.chain: _live(reader) for reader in readers}
    for reader, manifest in commits:
        try:
            reader.raise_damage(manifest)
        except CorruptionError as error:
            problems.append(str(error))
            continue
        problems += _bad_links(reader, manifest, directory, live=manifest.sequence in live[reader.chain])
    return list(dict.fromkeys(problems))


def _live(reader: ChainReader) -> set[int]:
    """Returns the sequences of history from the newest commit back, and of the commits that replace it."""
    live: set[int] = set()
    at = reader.newest([])
    while at is not None:
        live |= {at[1].sequence, *(m.sequence for m in reader.replacements().get(at[1], ()))}
        at, _ = before(reader, at[0], [])
    return live


def _read_all(
    commits: list[tuple[ChainReader, Manifest]], watch: Callable[[int, int], object] | None
) -> None:
    """Reads every byte of all commits, as many of them at once as keep the disk busy."""
    total, done = sum(manifest.bytes for _, manifest in commits), 0
    batch: list[tuple[ChainReader, Manifest]] = []
    for number, commit in enumerate(commits, 1):
        batch.append(commit)
        size = sum(manifest.bytes for _, manifest in batch)
        if size >= _BATCH_BYTES or len(batch) == _MOST_COMMITS or number == len(commits):
            read_commits(batch)
            done += size
            batch = []
            if watch is not None:
                watch(done, total)


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


def _bad_links(reader: ChainReader, manifest: Manifest, directory: Directory, *, live: bool) -> list[str]:
    """Returns what is wrong with the links of a commit; a missing one counts where retention removes none.

    That is in live history: of an abandoned branch it may have left any part.
    """
    problems = []
    for ref in (manifest.parent, manifest.grandparent, manifest.exact_parent):
        if ref is None:
            continue
        if ref.sequence in reader.sequences or (live and _is_missed(reader, manifest, ref, directory)):
            try:
                reader.follow(ref)
            except CorruptionError as error:
                problems.append(str(error))
    for shard, ref in manifest.commits.items():
        chain = directory.shard(shard)
        try:
            if manifest.kind in EXACT_KINDS:
                exact_plan(chain, shard, ref)
            elif not chain.covers(ref.sequence):
                chain.readings(ref)
        except CorruptionError as error:
            problems.append(str(error))
    return problems


def _is_missed(reader: ChainReader, manifest: Manifest, ref: Ref, directory: Directory) -> bool:
    """Whether the commit before `manifest` should be there: retention may remove older ones."""
    at = reader.newest([])
    exact = None if at is None else exact_ref(*at)
    least = exact.sequence if exact else 0
    if ref != manifest.parent or ref.sequence < least or reader.is_pruned(ref) or reader.covers(ref.sequence):
        return False
    if reader.shard is not None:
        return True
    return not all(
        directory.shard(shard).covers(of_shard.sequence) for shard, of_shard in manifest.commits.items()
    )


def _foreign_files(reader: ChainReader) -> list[str]:
    problems = []
    for directory, kinds in ((naming.MANIFESTS, ("manifest", "temporary")), (naming.SEGMENTS, ("segment",))):
        for name in files.list_directory(reader.path / directory):
            parsed = naming.parse(name)
            if parsed is None or parsed.what not in kinds:
                problems.append(f"{reader.path / directory / name}: not a file of a checkpoint")
    return problems


def _summary(reader: ChainReader, problems: list[str]) -> ChainSummary:
    live = _live(reader)
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
                replaces=manifest.replaces.sequence if manifest.replaces else None,
                segments=len(manifest.segments),
                rows=manifest.rows,
                bytes=manifest.bytes,
                live=sequence in live,
                shard_commits={shard: ref.sequence for shard, ref in manifest.commits.items()},
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
