"""What to load, in which order, for one restore; verified wholly before the first row is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, Protocol

from cpr_native.errors import CorruptionError, NoCheckpointError
from cpr_native.store.chain import ChainReader, check_commits, exact_ref, note
from cpr_native.store.manifest import EXACT_KINDS, Manifest, Ref, SegmentRecord
from cpr_native.store.stored import StoredRows, stored_rows

Mode = Literal["exact", "running"]

_MOST_FILES = 64  # open at a time


class RowSink(Protocol):
    """What a restore writes to."""

    def load_rows(self, stored: Sequence[StoredRows]) -> None:
        """Writes rows in place, by `load_stored` into an engine or from what `read()` of each returns.

        No row comes twice in one call. `stored` is valid until the call returns.
        """


@dataclass(frozen=True, kw_only=True)
class PlannedSegment:
    """One segment of a plan and the commit it belongs to."""

    shard: int
    commit: Manifest
    record: SegmentRecord

    @property
    def priority(self) -> bool:
        """Whether the rows are those of a priority commit."""
        return self.commit.kind == "priority"


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """The commits of one chain that a restore needs, oldest first, and where its history goes on after it.

    `head` is the commit restored to, `exact` the newest base or delta in it (None: save a base next).
    `broken`: a damaged base or delta was left out. `complete`: the chain has a base.
    """

    reader: ChainReader
    shard: int
    head: Ref
    exact: Ref | None
    commits: tuple[Manifest, ...]
    complete: bool
    broken: bool = False
    skipped: tuple[str, ...] = ()


def exact_plan(reader: ChainReader, shard: int, ref: Ref) -> ChainPlan:
    """Returns base and deltas up to the commit `ref`, no priority commits. Raises CorruptionError."""
    exact = exact_ref(reader.readings(ref)[0], ref)
    commits: list[Manifest] = []
    link = exact
    while link is not None:
        commits.append(reader.readings(link)[0])
        if commits[-1].kind == "base":
            return ChainPlan(
                reader=reader, shard=shard, head=ref, exact=exact, commits=tuple(commits[::-1]), complete=True
            )
        link = commits[-1].exact_parent
    raise CorruptionError(f"{reader.manifest_path(ref.sequence)}: no base before it")


def running_plan(reader: ChainReader, shard: int) -> ChainPlan:
    """Returns everything intact in a shard's chain from its newest commit back to the newest intact base.

    Priority commits older than an intact delta or base are left out: it holds their rows, as new or newer.
    Damaged commits are left out and named in `skipped`. Every byte of the segments is read here.
    Raises NoCheckpointError: no intact commit, or a damaged base with no other before it.
    """
    skipped: list[str] = []
    at = reader.newest(skipped)
    if at is None:
        raise NoCheckpointError(refusal(f"{reader.path}: no intact commit", skipped))
    head, exact = at[1], exact_ref(*at)
    commits: list[Manifest] = []
    have_exact = broken = complete = False
    while at is not None and not complete:
        is_exact = at[0].kind in EXACT_KINDS
        if is_exact or (at[0].kind == "priority" and not have_exact):
            intact = _intact_reading(reader, at[1], skipped)
            if intact is not None:
                at = (intact, at[1])
                commits.append(intact)
                have_exact |= is_exact
                complete = intact.kind == "base"
            else:
                broken |= is_exact
        if not complete:
            at, lost_exact = before(reader, at[0], skipped)
            broken |= lost_exact
    if broken and not complete:
        raise NoCheckpointError(refusal(f"{reader.path}: no intact base before the damage", skipped))
    return ChainPlan(
        reader=reader,
        shard=shard,
        head=head,
        exact=None if broken else exact,
        commits=tuple(commits[::-1]),
        complete=complete,
        broken=broken,
        skipped=tuple(skipped),
    )


def _intact_reading(reader: ChainReader, ref: Ref, skipped: list[str]) -> Manifest | None:
    """Returns what `ref` can be read from, to the last byte; `skipped` says what is damaged."""
    for manifest in reader.readings(ref):
        try:
            reader.check_segments(manifest)
        except CorruptionError as error:
            note(skipped, error)
        else:
            return manifest
    return None


def before(
    reader: ChainReader, manifest: Manifest, skipped: list[str]
) -> tuple[tuple[Manifest, Ref] | None, bool]:
    """Returns the commit before `manifest`, around a damaged one, and whether a base or delta was lost.

    The commit comes as it is best read, perhaps from one that replaces it, with its own reference.
    """
    links = [
        link for link in (manifest.parent, manifest.grandparent, manifest.exact_parent) if link is not None
    ]
    missing = []
    for link in links:
        try:
            found = reader.readings(link)[0]
        except CorruptionError as error:
            if link.sequence in reader.sequences:
                note(skipped, error)
            elif not reader.is_pruned(link) and not reader.covers(link.sequence):
                missing.append(error)
            continue
        # Past a damaged parent: it was a base or delta if it is the exact parent that could not be read.
        lost = manifest.exact_parent is not None and link.sequence < manifest.exact_parent.sequence
        # Retention removes what lies between the newest base or delta and the one before it, and global
        # commits whose rows are folded.
        redundant = reader.shard is None or (manifest.kind in EXACT_KINDS and link == manifest.exact_parent)
        if lost or not redundant:
            _note_all(skipped, missing)
        return (found, link), lost
    _note_all(skipped, missing)
    return None, manifest.exact_parent is not None


def _note_all(skipped: list[str], errors: Sequence[CorruptionError]) -> None:
    for error in errors:
        note(skipped, error)


def refusal(what: str, skipped: Sequence[str]) -> str:
    """Returns one line: what is refused, and the reasons."""
    return what + "".join(f"; {message}" for message in skipped)


@dataclass(kw_only=True)
class RestorePlan:
    """The segments to load for some shards. Made by `RestorePoint.plan` and `CheckpointStore.shard_plan`."""

    mode: Mode
    chains: tuple[ChainPlan, ...]
    _verified: bool = field(default=False, init=False)

    @property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """The segments in the order of loading: by shard, then oldest first."""
        return tuple(
            PlannedSegment(shard=chain.shard, commit=commit, record=record)
            for chain in self.chains
            for commit in chain.commits
            for record in commit.segments
        )

    @property
    def complete(self) -> bool:
        """Whether every chain has a base; if not, the caller resets the rows before they are applied."""
        return all(chain.complete for chain in self.chains)

    @property
    def broken(self) -> bool:
        """Whether a damaged base or delta was left out (running mode): the next save must be a base."""
        return any(chain.broken for chain in self.chains)

    @property
    def skipped(self) -> list[str]:
        """What was refused in these chains, and why."""
        return [message for chain in self.chains for message in chain.skipped]

    @property
    def rows(self) -> int:
        """Rows in the segments; a row in several commits counts several times."""
        return sum(sum(planned.record.rows.values()) for planned in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes of the segments."""
        return sum(planned.record.size for planned in self.segments)

    def verify(self) -> None:
        """Reads every byte of every segment needed; raises CorruptionError or OSError. Nothing is applied.

        In the place of a damaged commit that replaces others the plan takes these, if they are still there.
        """
        while True:
            try:
                check_commits([(chain.reader, commit) for chain in self.chains for commit in chain.commits])
            except CorruptionError as error:
                replanned = tuple(map(_replanned, self.chains))
                if replanned == self.chains:
                    raise
                self.chains = tuple(
                    old if new is old else replace(new, skipped=(*old.skipped, str(error)))
                    for old, new in zip(self.chains, replanned, strict=True)
                )
                continue
            self._verified = True
            return

    def holds(self, table: str, begin: int, end: int) -> bool:
        """Whether the plan has every one of the global rows [begin, end) of `table`: a base of them."""
        for chain in self.chains:
            if chain.complete and chain.commits:
                commit = chain.commits[0]
                first, last = commit.placement.row_range(commit.schema, table, chain.shard)
                if first <= begin and end <= last:
                    return True
        return False

    def apply(self, sink: RowSink) -> None:
        """Verifies everything, then loads the segments into `sink`, in each chain the oldest first.

        So the newest row stays. The first commits of all chains go together, then their second ones, ...

        All that is loaded is checked once more as it is read: a file that changed after `verify` raises
        CorruptionError, perhaps with some of its rows loaded.
        """
        if not self._verified:
            self.verify()
        for number in range(max((len(chain.commits) for chain in self.chains), default=0)):
            segments = (
                (chain, chain.commits[number], record)
                for chain in self.chains
                if number < len(chain.commits)
                for record in chain.commits[number].segments
            )
            while batch := list(islice(segments, _MOST_FILES)):
                with ExitStack() as stack:
                    opened = [stack.enter_context(_stored(*segment)) for segment in batch]
                    sink.load_rows([stored for tables in opened for stored in tables])


def _replanned(chain: ChainPlan) -> ChainPlan:
    """Returns the plan without replacements that were found damaged, itself where there are none."""
    damaged = [m for m in chain.commits if m.replaces is not None and chain.reader.is_damaged(m)]
    return exact_plan(chain.reader, chain.shard, chain.head) if damaged else chain


def _stored(
    chain: ChainPlan, commit: Manifest, record: SegmentRecord
) -> AbstractContextManager[list[StoredRows]]:
    return stored_rows(
        chain.reader.segment_path(record.name),
        record,
        commit.schema,
        commit.placement,
        chain.shard,
        priority=commit.kind == "priority",
    )
