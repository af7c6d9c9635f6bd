"""Compaction of one chain: base and deltas become a base, a run of priority commits one priority commit.

Rows stream from the old segments to the new ones. What is held in memory is the segment being gathered, a
block of the one being read, and two bits for each row of the shard. Of every row the newest copy is taken:
commits are read from the newest to the oldest, and a row that was taken is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_native.errors import CorruptionError
from cpr_native.store.chain import ChainReader, exact_ref
from cpr_native.store.chain_save import ChainSave
from cpr_native.store.chain_writer import ChainWriter
from cpr_native.store.manifest import EXACT_KINDS, Manifest, Ref
from cpr_native.store.restore import before, exact_plan
from cpr_native.store.row_blocks import RowBlock, TakenRows, row_blocks
from cpr_native.store.segment import SegmentPart
from cpr_native.store.segment_reader import OpenSegment

BLOCK_BYTES = 2**20

Watch = Callable[[int], object]  # told the bytes read; may raise to stop


@dataclass(frozen=True, kw_only=True)
class Folded:
    """What compaction made of `commits` commits: `sequence` of `chain`, to be read for `replaced`."""

    chain: str
    kind: str
    sequence: int
    replaced: int
    commits: int
    rows: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """Commits that one could stand for: of `replaced` and before it, newest first."""

    replaced: Ref
    commits: tuple[Manifest, ...]

    @property
    def bytes(self) -> int:
        """Bytes of their segments."""
        return sum(commit.bytes for commit in self.commits)


def exact_run(reader: ChainReader) -> Run | None:
    """Returns base and deltas up to the newest base or delta in history, None without any.

    Raises CorruptionError when they do not lead to a base.
    """
    at = reader.newest([])
    exact = None if at is None else exact_ref(*at)
    if exact is None or reader.shard is None:
        return None
    plan = exact_plan(reader, reader.shard, exact)
    return Run(replaced=exact, commits=plan.commits[::-1])


def priority_run(reader: ChainReader) -> Run | None:
    """Returns the priority commits since the newest base or delta; None without any or if some are lost."""
    skipped: list[str] = []
    at = reader.newest(skipped)
    replaced: Ref | None = None
    commits: list[Manifest] = []
    while at is not None and at[0].kind not in EXACT_KINDS:
        manifest = at[0]
        if manifest.kind == "priority":
            replaced = replaced or at[1]
            manifest = reader.readings(at[1])[0]
            commits.append(manifest)
        at, _ = before(reader, manifest, skipped)
    if replaced is None or skipped:
        return None
    return Run(replaced=replaced, commits=tuple(commits))


def fold(writer: ChainWriter, reader: ChainReader, run: Run, watch: Watch = lambda _: None) -> Folded:
    """Commits what `run` gives, the newest copy of each row, to be read in the place of its newest commit.

    Every byte is checked as it is read, before the commit. Nothing of the run is removed.
    Raises CorruptionError, FencedError, OSError, and what `watch` raises: then no trace is left.
    """
    reader.fetch(run.commits)
    newest, oldest = run.commits[0], run.commits[-1]
    base = oldest.kind == "base"
    save = writer.begin_replacement(newest, run.replaced, None if base else oldest)
    try:
        _copy(save, reader, run.commits, watch, steps=not base)
        try:
            manifest, _ = save.commit()
        except ValueError as error:
            raise CorruptionError(f"{reader.path}: {error}") from None
    finally:
        save.abort()
    return Folded(
        chain=reader.chain,
        kind=manifest.kind,
        sequence=manifest.sequence,
        replaced=run.replaced.sequence,
        commits=len(run.commits),
        rows=sum(manifest.rows.values()),
        bytes_before=run.bytes,
        bytes_after=manifest.bytes,
    )


def _copy(
    save: ChainSave, reader: ChainReader, commits: Sequence[Manifest], watch: Watch, *, steps: bool
) -> None:
    """Adds to `save` the newest copy of each row in `commits`, which come newest first."""
    schema, placement, shard = save.manifest.schema, save.manifest.placement, reader.shard
    assert shard is not None
    taken = {t.name: TakenRows(*placement.row_range(schema, t.name, shard)) for t in schema.tables}
    most = min(BLOCK_BYTES, save.max_segment_bytes)
    for commit in commits:
        for rows in taken.values():
            rows.next_commit()
        for record in commit.segments:
            with OpenSegment(reader.segment_path(record.name), record) as segment:
                segment.check_rows(record, schema, quantised=commit.kind != "base")
                for table, count in record.rows.items():
                    for block in row_blocks(segment, schema.table(table), count, most):
                        fresh = taken[table].take(block.rows, f"{segment.path}: table {table!r}")
                        if fresh.any():
                            _add(save, _part(shard, table, block, fresh, commit.step if steps else None))
                        watch(0)
            watch(record.size)


def _part(shard: int, table: str, block: RowBlock, fresh: NDArray[np.bool_], step: int | None) -> SegmentPart:
    steps = None
    if step is not None:
        steps = np.full(len(block.rows), step, np.int64) if block.step is None else block.step
    return SegmentPart(
        shard=shard,
        table=table,
        rows=block.rows[fresh],
        weight=block.weight[fresh],
        state=None if block.state is None else block.state[fresh],
        count=block.count[fresh],
        step=None if steps is None else steps[fresh],
    )


def _add(save: ChainSave, part: SegmentPart) -> None:
    if save.gathered_bytes and save.gathered_bytes + part.nbytes > save.max_segment_bytes:
        save.write()
    save.add(part)
