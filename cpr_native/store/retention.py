"""Removing commits that no kept point needs."""

from __future__ import annotations

from pathlib import Path

from cpr_native.errors import CorruptionError
from cpr_native.store import files, naming
from cpr_native.store.chain import ChainReader
from cpr_native.store.directory import Directory, RestorePoint
from cpr_native.store.manifest import EXACT_KINDS
from cpr_native.store.restore import RestorePlan


def prune(path: Path, keep: int) -> None:
    """Removes what is older than the newest `keep` exact points need, and abandoned branches after that.

    Called by the writer, which holds the locks. The points kept are read and verified to the last byte first:
    with fewer than `keep` intact ones nothing is removed. A running restore needs nothing older than they do.
    An interruption leaves a shorter history, and segments without a manifest, which the next writer removes.
    Raises OSError.
    """
    directory = Directory(path, threads=1)  # training goes on beside it
    kept: list[RestorePoint] = []
    plans: list[RestorePlan] = []
    for manifest, ref in directory.history([]):
        point = RestorePoint(directory=directory, ref=ref, manifest=manifest, mode="exact")
        if manifest.kind in EXACT_KINDS:
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
    else:
        return
    _remove(directory.whole, {point.sequence for point in kept})
    for shard in range(kept[0].placement.shards):
        needed = {commit.sequence for plan in plans for commit in plan.chains[shard].commits}
        needed |= {point.manifest.commits[shard].sequence for point in kept}
        _remove(directory.shard(shard), needed)


def _remove(chain: ChainReader, needed: set[int]) -> None:
    oldest = min(needed)
    live = needed | _ancestors(chain, oldest)
    # The oldest first: what is left of history then begins later, as after a whole removal. Abandoned
    # branches lie behind its beginning and lose their newest commits first.
    doomed = [s for s in chain.sequences if s < oldest]
    doomed += [s for s in reversed(chain.sequences) if s > oldest and s not in live]
    if not doomed:
        return
    for sequence in doomed:
        files.remove(chain.manifest_path(sequence))
    files.sync_directory(chain.path / naming.MANIFESTS)
    for name in files.list_directory(chain.path / naming.SEGMENTS):
        parsed = naming.parse(name)
        if parsed is not None and parsed.sequence in doomed:
            files.remove(chain.segment_path(name))


def _ancestors(chain: ChainReader, oldest: int) -> set[int]:
    """Returns the history of the newest commit back to `oldest`; all commits if a damaged one hides it."""
    try:
        manifest, ref = chain.load(chain.sequences[-1])
        found = {ref.sequence}
        while manifest.parent is not None and manifest.parent.sequence >= oldest:
            found.add(manifest.parent.sequence)
            manifest = chain.follow(manifest.parent)
        return found
    except CorruptionError:
        return set(chain.sequences)
