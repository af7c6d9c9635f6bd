"""Removing commits that no kept point needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cpr_native.errors import CorruptionError
from cpr_native.store import files, naming
from cpr_native.store.chain import ChainReader
from cpr_native.store.directory import Directory, RestorePoint
from cpr_native.store.manifest import EXACT_KINDS, Manifest, Ref
from cpr_native.store.restore import ChainPlan, RestorePlan


def prune(path: Path, keep: int) -> None:
    """Removes what neither the newest `keep` exact points need nor the newest state of a shard.

    So these go: older commits; priority commits before the newest of the points, which has their rows as new
    or newer; what compaction has replaced; abandoned branches. Called by the writer, which holds the locks.
    The points kept, and the commits that stand for others, are read and verified to the last byte first. With
    fewer than `keep` intact points only priority commits that compaction has replaced are removed.

    An interruption leaves any of these commits, whose links may lead nowhere, and segments without a
    manifest, which the next writer removes. Raises OSError.
    """
    directory = Directory(path, threads=1)  # training goes on beside it
    kept, plans = _kept(directory, keep)
    if not kept:
        return
    lives = [_live(directory.shard(chain.shard), chain) for chain in plans[0].chains]
    for life in lives:
        life.needed |= {c.sequence for plan in plans for c in plan.chains[life.shard].commits}
    enough = len(kept) == keep
    _remove(directory.whole, _whole_life(directory, kept, lives), enough=enough)  # before what it names
    for life in lives:
        _remove(directory.shard(life.shard), life, enough=enough)


def _kept(directory: Directory, keep: int) -> tuple[list[RestorePoint], list[RestorePlan]]:
    kept: list[RestorePoint] = []
    plans: list[RestorePlan] = []
    for manifest, ref in directory.history([]):
        if manifest.kind in EXACT_KINDS:
            point = RestorePoint(directory=directory, ref=ref, manifest=manifest, mode="exact")
            try:
                directory.whole.check_segments(manifest)
                plan = point.plan()
                plan.verify()
            except CorruptionError:
                continue
            kept.append(point)
            plans.append(plan)
            if len(kept) == keep:
                break
    return kept, plans


@dataclass(kw_only=True)
class _Life:
    """What is alive of a chain, which the newest kept exact point divides at its commit `exact`.

    `needed`: commits that stay. `folded`: up to this one, and after `exact`, an intact priority commit in
    `needed` has all rows. `hidden`: damage hides what is alive, and all after `exact` stays.
    """

    exact: int
    shard: int = -1
    needed: set[int] = field(default_factory=set)
    folded: int = 0
    hidden: bool = False


def _live(chain: ChainReader, plan: ChainPlan) -> _Life:
    """Returns what is alive of a shard's chain after the newest base or delta of a point."""
    assert plan.exact is not None
    life = _Life(exact=plan.exact.sequence, shard=plan.shard)
    for manifest, ref in _history(chain, life):
        if manifest.replaces is not None and not life.folded:
            life.folded = ref.sequence
        life.needed.add(manifest.sequence)
    return life


def _history(chain: ChainReader, life: _Life) -> Iterator[tuple[Manifest, Ref]]:
    """Yields the commits after `life.exact`, the newest first, as they are best read and intact.

    The newest one itself stays whatever stands for it: history is found from it.
    """
    skipped: list[str] = []
    at = chain.newest(skipped)
    life.hidden = at is None or bool(skipped)
    if at is None:
        return
    life.needed.add(at[1].sequence)
    link: Ref | None = at[1]
    while link is not None and link.sequence > life.exact:
        try:
            manifest = _best(chain, link)
        except CorruptionError:
            life.hidden = True
            return
        yield manifest, link
        link = manifest.parent


def _best(chain: ChainReader, ref: Ref) -> Manifest:
    for manifest in chain.readings(ref):
        if manifest.replaces is not None:
            with suppress(CorruptionError):
                chain.check_segments(manifest)
                return manifest
    return chain.follow(ref)


def _whole_life(directory: Directory, kept: list[RestorePoint], lives: list[_Life]) -> _Life:
    """Returns what is alive of the global chain: of saves with folded rows, the newest that is intact."""
    life = _Life(exact=kept[0].sequence, needed={point.sequence for point in kept})
    for manifest, own in _history(directory.whole, life):
        life.needed.add(own.sequence)
        folded = [ref.sequence <= lives[shard].folded for shard, ref in manifest.commits.items()]
        if manifest.kind == "priority" and folded and all(folded):
            with suppress(CorruptionError):
                directory.whole.check_segments(manifest)
                life.folded = own.sequence - 1
                break
    return life


def _remove(chain: ChainReader, life: _Life, *, enough: bool) -> None:
    """Removes what is not needed. Without `enough` points: only what is folded."""
    doomed = []
    for sequence in chain.sequences:
        folded = life.exact < sequence <= life.folded and (chain.shard is None or chain.covers(sequence))
        after = life.exact < sequence and life.hidden
        if sequence not in life.needed and (folded or (enough and not after)):
            doomed.append(sequence)
    if not doomed:
        return
    for sequence in doomed:
        files.remove(chain.manifest_path(sequence))
    files.sync_directory(chain.path / naming.MANIFESTS)
    gone = set(doomed)
    for name in files.list_directory(chain.path / naming.SEGMENTS):
        parsed = naming.parse(name)
        if parsed is not None and parsed.sequence in gone:
            files.remove(chain.segment_path(name))
