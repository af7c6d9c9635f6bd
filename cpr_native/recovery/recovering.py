"""The part of a manager that recovers from failures, in the same process and in a new one."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from cpr_native.errors import NoCheckpointError
from cpr_native.recovery import restore
from cpr_native.recovery.report import Cut, RecoveryReport
from cpr_native.recovery.together import Together
from cpr_native.store import RestorePoint
from cpr_native.store.restore import Mode


class Recovering(Together):
    """A manager that goes back to what was committed, or on with what is in shared memory.

    One of several processes (`shard`, `shards`): all of them call `start`, `step`, `save`, `flush`,
    `recover`, `resume` and `close` at the same points of the same training steps, with the samples of the
    whole step. A save that is due while one of them still writes the last is left out. After a restart those
    that find their tables in shared memory go on with them; under partial recovery the others load their
    shard alone.
    """

    def recover(self, failed_shards: Sequence[int]) -> RecoveryReport:
        """Discard the rows of `failed_shards` in memory and recover as the policy says.

        Settles the save in flight first. Partial: their rows go back to the newest committed ones,
        everything else stays. Full: all rows, dense parameters, optimizer, RNG and data position go back to
        the newest exact point, a rollback is committed, and training replays from there. Raises ValueError
        or IndexError for wrong shards, and CorruptionError, NoCheckpointError or OSError when the
        checkpoint cannot be read: nothing is changed then. If it is interrupted or a file is damaged
        while it is read for the second time, rows are half restored: `step`, `save` and `close` raise until
        `recover` has succeeded for those shards, which it includes by itself.
        """
        writer = self._saves.require_writer()
        wanted = restore.check_shards(failed_shards, self._placement.shards)
        failed = tuple(sorted({*wanted, *self._half.shards}))
        self._saves.settle()
        self._saves.count()
        self._tables.sync()
        started = perf_counter()
        with writer.paused():  # no file goes away that is being read
            if self.policy.recovery == "partial":
                report = self._recover_partial(failed, started)
            else:
                report = self._rewind(self._point("exact"), failed, started)
        self._leave()
        return report

    def resume(self, *, required: bool = False) -> RecoveryReport | None:
        """Go on in a new process or with a new model object: from `shared` memory, else from the store.

        Tables in shared memory are as the process before left them, and so is all else of its last step,
        unless the report says why they were `refused`. From the newest intact state of the store it restores
        rows, dense state, optimizer, RNG and data position: the newest exact point, or under a
        partial policy the newest rows of every commit. None when nothing was ever committed, or with
        `required` NoCheckpointError. Raises NoCheckpointError when there are commits but none is intact,
        SchemaMismatchError for another model's.
        """
        if self.running:
            raise ValueError("resume() goes before start() and step()")
        started = perf_counter()
        if self._gang is None:
            report = self._reattached(started)
        else:
            report = self._reattached_together(self._gang, started)
        if report is not None:
            return report
        if not required and not self._anywhere(restore.holds_commits(self._store)):
            return None
        self._tables.sync()
        started = perf_counter()
        point = self._point(restore.mode_of(self.policy.recovery))
        self._saves.open(self._store)
        try:
            report = self._rewind(point, tuple(range(self._placement.shards)), started, restart=True)
            self._leave()
            return report
        except BaseException:
            self._saves.close()
            raise

    def _point(self, mode: Mode) -> RestorePoint:
        """Return the newest point, the same in all processes of a gang."""
        if self._gang is not None and self._gang.shard != 0:
            chosen = self._gang.from_one(-1, 0)
            directory = self._store.directory()
            for manifest, ref in directory.history([]):
                if ref.sequence == chosen:
                    return RestorePoint(directory=directory, ref=ref, manifest=manifest, mode=mode)
            raise NoCheckpointError(
                f"{self._store}: shard 0 goes back to commit {chosen}, which is not there"
            )
        point = self._store.latest(mode, schema=self._tables.schema, placement=self._placement)
        return point if self._gang is None else self._announced(point)

    def _announced(self, point: RestorePoint) -> RestorePoint:
        assert self._gang is not None
        self._gang.from_one(point.sequence, 0)
        return point

    def _rewind(
        self, point: RestorePoint, failed: tuple[int, ...], started: float, *, restart: bool = False
    ) -> RecoveryReport:
        """Put everything back to `point` and go on from its position."""
        writer = self._saves.require_writer()
        self._invalidate()
        restored = restore.restore_point(
            point, writer, self._tables, self._dense, self.shards, failed, self._half, restart=restart,
            gang=self._gang,
        )  # fmt: skip
        fields: dict[str, Any] = {"lost_samples": self.samples - point.samples}
        self.steps, self.samples = point.step, point.samples
        info = {**point.info, **self._own_counts(point)}
        cut = Cut(step=point.step, samples=point.samples, info=info, commit=point.sequence)
        self._saves.rewind(cut, exact=point.kind != "priority")
        if restored.broken:
            self._saves.require_base()
        if restart:
            lookups, pls = self._losses.restarted(info, samples=point.samples)
            self.pace.load_state_dict(point.info)
            fields = {"restart": True, "lost_lookups": lookups, "pls": pls, "refused": self._refused}
        return self._report(failed, started, [restored], mode="full", **fields)

    def _own_counts(self, point: RestorePoint) -> dict[str, Any]:
        """Return the counts of lookups that a process of a gang noted with its own commit of a point."""
        if self._gang is None:
            return {}
        shard = self._gang.shard
        info = point.directory.shard(shard).follow(point.manifest.commits[shard]).info
        return {name: info[name] for name in ("lookups", "unsaved_lookups")}

    def _recover_partial(self, failed: tuple[int, ...], started: float) -> RecoveryReport:
        self._invalidate()
        restored = restore.restore_shards(self.shards, failed, self._half)
        self._saves.restored(restored, [shard for shard in self.shards if shard.number in failed])
        lookups, pls = self._losses.shards_lost(failed, samples=self.samples)
        return self._report(failed, started, restored, mode="partial", lost_lookups=lookups, pls=pls)
