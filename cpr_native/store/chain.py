"""Reading one chain: manifests by sequence number, history by parent links. Takes no lock, writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpr_native.errors import CorruptionError, SchemaMismatchError
from cpr_native.store import files, naming
from cpr_native.store.check import CommitCheck, check_segments
from cpr_native.store.manifest import EXACT_KINDS, MAX_MANIFEST_BYTES, Manifest, Ref, SegmentRecord, decode
from cpr_native.store.placement import Placement
from cpr_native.store.schema import CollectionSchema

Fetch = Callable[[Sequence[tuple[str, SegmentRecord]]], Mapping[tuple[str, str], CorruptionError]]


def exact_ref(manifest: Manifest, ref: Ref) -> Ref | None:
    """Returns the newest base or delta at or before a commit: what exact restore begins with."""
    return ref if manifest.kind in EXACT_KINDS else manifest.exact_parent


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What all commits of a checkpoint directory share."""

    run_id: str
    schema: CollectionSchema
    placement: Placement

    def check_same(self, other: Identity, where: str) -> None:
        """Raises SchemaMismatchError, naming the field, unless `other`, read from `where`, is equal."""
        if self.run_id != other.run_id:
            raise SchemaMismatchError(f"{where}: run id: expected {self.run_id}, got {other.run_id}")
        self.schema.check_same(other.schema, where)
        self.placement.check_same(other.placement, where)


def identity_of(manifest: Manifest) -> Identity:
    """Returns the identity that a manifest states."""
    return Identity(run_id=manifest.run_id, schema=manifest.schema, placement=manifest.placement)


@dataclass
class Position:
    """Where the next commit goes: the newest commit of this history and the newest base or delta in it."""

    head: Ref | None = None
    head_parent: Ref | None = None
    exact: Ref | None = None


class ChainReader:
    """The commits of one chain as they are on disk when they are first asked for.

    A manifest of another run, schema or placement than `identity` is refused; without `identity` the oldest
    intact manifest sets it. `threads`: read segments; None: as many as there are processors.
    `fetch`: brings segments of a remote checkpoint here before they are read.
    """

    def __init__(
        self,
        root: Path,
        chain: str,
        identity: Identity | None = None,
        threads: int | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self.fetches = fetch
        self.chain = chain
        self.threads = threads or files.reading_threads()
        self.shard = naming.shard_of(chain)
        self.path = naming.chain_path(root, chain)
        self._loaded: dict[int, tuple[Manifest, Ref] | CorruptionError] = {}
        self._checked: dict[int, CorruptionError | None] = {}
        self._damaged: dict[int, CorruptionError] = {}
        self._replacing: dict[Ref, list[Manifest]] | None = None
        self.sequences = self._listed()
        self.identity = identity or self._oldest_identity()

    def _listed(self) -> list[int]:
        parsed = [naming.parse(name) for name in files.list_directory(self.path / naming.MANIFESTS)]
        return [p.sequence for p in parsed if p is not None and p.what == "manifest"]

    def is_outdated(self) -> bool:
        """Whether commits that were there are gone by now: a writer's retention has removed them."""
        return not set(self.sequences) <= set(self._listed())

    def _oldest_identity(self) -> Identity | None:
        for sequence in self.sequences:
            try:
                return identity_of(self._read(sequence)[0])
            except CorruptionError:
                continue
        return None

    def manifest_path(self, sequence: int) -> Path:
        """Returns the path of the manifest of commit `sequence`."""
        return self.path / naming.MANIFESTS / naming.manifest_name(sequence)

    def segment_path(self, name: str) -> Path:
        """Returns the path of the segment file `name`."""
        return self.path / naming.SEGMENTS / name

    def _read(self, sequence: int) -> tuple[Manifest, Ref]:
        where = self.manifest_path(sequence)
        manifest, ref = decode(files.read_file(where, MAX_MANIFEST_BYTES), where)
        for name, expected, got in (
            ("sequence", sequence, manifest.sequence),
            ("chain", self.chain, manifest.chain),
        ):
            if expected != got:
                raise CorruptionError(f"{where}: {name}: expected {expected}, got {got}")
        return manifest, ref

    def load(self, sequence: int) -> tuple[Manifest, Ref]:
        """Returns a commit and its reference; raises CorruptionError: missing, damaged, misnamed, foreign."""
        if sequence not in self._loaded:
            try:
                manifest, ref = self._read(sequence)
                if self.identity is not None:
                    self.identity.check_same(identity_of(manifest), str(self.manifest_path(sequence)))
                self._loaded[sequence] = manifest, ref
            except CorruptionError as error:
                self._loaded[sequence] = error
            except SchemaMismatchError as error:
                self._loaded[sequence] = CorruptionError(str(error))
        loaded = self._loaded[sequence]
        if isinstance(loaded, CorruptionError):
            raise loaded
        return loaded

    def follow(self, ref: Ref) -> Manifest:
        """Returns the commit that `ref` names; raises CorruptionError if it is not that very commit."""
        manifest, found = self.load(ref.sequence)
        if found != ref:
            where = self.manifest_path(ref.sequence)
            raise CorruptionError(
                f"{where}: CRC-32C: expected by a later commit {ref.crc:08x}, got {found.crc:08x}"
            )
        return manifest

    def newest(
        self, skipped: list[str], below: int = naming.MAX_SEQUENCE + 1, *, but: Container[int] = ()
    ) -> tuple[Manifest, Ref] | None:
        """Returns the intact commit of the highest sequence under `below`; `skipped` says what was passed.

        Commits that replace others are not part of history. but: sequences that do not count.
        """
        for sequence in reversed(self.sequences):
            if sequence < below and sequence not in but:
                try:
                    found = self.load(sequence)
                except CorruptionError as error:
                    note(skipped, error)
                    continue
                if found[0].replaces is None:
                    return found
        return None

    def replacements(self) -> Mapping[Ref, list[Manifest]]:
        """Returns the commits that others may be read from instead, by the one replaced, the newest first."""
        if self._replacing is None:
            self._replacing = {}
            for sequence in reversed(self.sequences):
                try:
                    manifest, _ = self.load(sequence)
                except CorruptionError:
                    continue
                if manifest.replaces is not None:
                    self._replacing.setdefault(manifest.replaces, []).append(manifest)
        return self._replacing

    def readings(self, ref: Ref) -> list[Manifest]:
        """Returns the commits that `ref` may be read from, the best first: replacements, then itself.

        Those whose segments are known to be damaged are left out. Raises CorruptionError when none is left.
        """
        found = [m for m in self.replacements().get(ref, ()) if not self.is_damaged(m)]
        try:
            found.append(self.follow(ref))
        except CorruptionError:
            if not found:
                raise
        return found

    def covers(self, sequence: int) -> bool:
        """Whether a commit stands for a run of others with this one among them, which then may be gone."""
        for replaced, manifests in self.replacements().items():
            if sequence <= replaced.sequence:
                for manifest in manifests:
                    if sequence > (manifest.parent.sequence if manifest.parent else 0):
                        return True
        return False

    def is_pruned(self, ref: Ref) -> bool:
        """Whether history was cut off by retention before `ref`: nothing as old as it is left."""
        return not self.sequences or ref.sequence < self.sequences[0]

    def fetch(self, manifests: Sequence[Manifest]) -> None:
        """Makes the segments of commits local; raises CorruptionError naming a damaged one, OSError."""
        _fetch([(self, manifest) for manifest in manifests])
        for manifest in manifests:
            if (error := self._damaged.get(manifest.sequence)) is not None:
                raise error

    def check_segments(self, manifest: Manifest) -> None:
        """Reads every byte of a commit's segments, once only; raises CorruptionError or OSError."""
        check_commits([(self, manifest)])

    def unchecked(self, manifest: Manifest) -> CommitCheck | None:
        """Returns the check of a commit's segments that is still to be made; None: it was."""
        if manifest.sequence in self._checked:
            return None
        return CommitCheck(
            manifest=manifest,
            shard=self.shard,
            folder=self.path / naming.SEGMENTS,
            error=self._damaged.get(manifest.sequence),
        )

    def set_damaged(self, manifest: Manifest, error: CorruptionError) -> None:
        """Told that a segment of a commit can't be had."""
        self._damaged.setdefault(manifest.sequence, error)

    def checked(self, manifest: Manifest, error: CorruptionError | None) -> None:
        """Remembers what a check has found."""
        self._checked[manifest.sequence] = error

    def is_damaged(self, manifest: Manifest) -> bool:
        """Whether a check has found damage in a commit's segments."""
        return self._checked.get(manifest.sequence) is not None

    def raise_damage(self, manifest: Manifest) -> None:
        """Raises the CorruptionError that the check of a commit has found, if any."""
        error = self._checked[manifest.sequence]
        if error is not None:
            raise error


def check_commits(commits: Sequence[tuple[ChainReader, Manifest]]) -> None:
    """Reads every byte of commits' segments that were not read before; raises CorruptionError or OSError."""
    read_commits(commits)
    for reader, manifest in commits:
        reader.raise_damage(manifest)


def read_commits(commits: Sequence[tuple[ChainReader, Manifest]]) -> None:
    """Does that, and leaves the damage to each reader's `raise_damage`; raises OSError."""
    _fetch([(reader, manifest) for reader, manifest in commits if reader.unchecked(manifest)])
    pending = [(reader, check) for reader, manifest in commits if (check := reader.unchecked(manifest))]
    if pending:
        check_segments([check for _, check in pending], pending[0][0].threads)
    for reader, check in pending:
        reader.checked(check.manifest, check.error)


def _fetch(commits: Sequence[tuple[ChainReader, Manifest]]) -> None:
    """Brings the segments of commits here, all at once, where the directory is a mirror of a remote one."""
    fetch = commits[0][0].fetches if commits else None
    if fetch is None:
        return
    damaged = fetch([(reader.chain, record) for reader, commit in commits for record in commit.segments])
    for reader, manifest in commits:
        for record in manifest.segments:
            if (error := damaged.get((reader.chain, record.name))) is not None:
                reader.set_damaged(manifest, error)


def note(skipped: list[str], error: Exception) -> None:
    """Adds the message of `error` to `skipped` unless it is there."""
    if str(error) not in skipped:
        skipped.append(str(error))


def only_epochs(reader: ChainReader, newest: tuple[Manifest, Ref] | None) -> bool:
    """Whether the history holds nothing but epochs: writers that never saved."""
    manifest = None if newest is None else newest[0]
    try:
        while manifest is not None and manifest.kind == "epoch":
            manifest = None if manifest.parent is None else reader.follow(manifest.parent)
    except CorruptionError:
        return False
    return manifest is None


def last_incarnation(reader: ChainReader) -> int:
    """Returns an incarnation that no intact commit exceeds, nor, as each writer adds one, a damaged one."""
    unreadable = 0
    for sequence in reversed(reader.sequences):
        try:
            return reader.load(sequence)[0].incarnation + unreadable
        except CorruptionError:
            unreadable += 1
    return unreadable
