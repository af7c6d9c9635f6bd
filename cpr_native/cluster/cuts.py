"""One snapshot of a shard, from the request to its commit or to the rows being as if it had never begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native._native import Snapshot, give_way
from cpr_native.cluster.messages import Committed, CutMissed, CutRequest
from cpr_native.cluster.tables import ShardTables
from cpr_native.combined import CombinedSnapshot
from cpr_native.errors import CprError
from cpr_native.policy import Policy, Scar, clears_dirty, exact_selections
from cpr_native.store import ChainWriter, SegmentPart
from cpr_native.store.chain_save import ChainSave


@dataclass(frozen=True)
class _Ranking:
    """What a policy may ask beside the trackers."""

    number: int

    def changes(self, table: int) -> NDArray[np.float32]:
        """Raise ValueError: a shard keeps no copy of its rows as last saved."""
        raise ValueError(f"table {table}: a shard keeps no copy of its rows as last saved")


@dataclass(frozen=True)
class _OneShard:
    """A chain's save as `CombinedSnapshot` takes it; all rows are of its shard, whatever they say."""

    save: ChainSave
    shard: int
    shards: int = 1

    def add(self, part: SegmentPart) -> None:
        self.save.add(replace(part, shard=self.shard))

    def flush(self) -> None:
        self.save.flush()


def check_policy(policy: Policy | None) -> None:
    """Raise ValueError for a policy that a shard can't carry out."""
    if isinstance(policy, Scar):
        raise ValueError(
            "Scar() needs a copy of the rows as last saved, which shards don't keep: use Drift()"
        )


class Cut:
    """A cut as asked for by `request`; `writer`: of the shard's chain, `tables`: what is saved.

    `told`: of the kind of the commit, when it stands.

    `begin` is called once, while no update runs; it starts the thread that writes. Everything else may be
    called by any thread. A cut ends once: committed, or given up with an error.
    """

    def __init__(
        self,
        request: CutRequest,
        writer: ChainWriter,
        tables: ShardTables,
        told: Callable[[str], object] = lambda _: None,
    ) -> None:
        check_policy(request.policy)
        self.request = request
        self._writer = writer
        self._tables = tables
        self._told = told
        self._deadline = monotonic() + request.seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._reason: str | None = None
        self._sealed = False
        self._committed: Committed | None = None
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether it is committed or given up, all marks merged back."""
        return self._ended.is_set()

    @property
    def begun(self) -> bool:
        """Whether its snapshot was taken."""
        return self._thread is not None

    @property
    def abandoned(self) -> bool:
        """Whether it was given up, though its thread may not have seen it yet."""
        return self._reason is not None

    @property
    def committed(self) -> Committed | None:
        """What was committed, None before and if it was given up."""
        return self._committed

    @property
    def error(self) -> BaseException | None:
        """Why it was given up."""
        return self._error

    def abandon(self, reason: str) -> None:
        """Give it up, unless its commit has its name already; what it took is merged back.

        Returns at once: the thread that writes sees it after the segment that it is writing.
        """
        with self._lock:
            if self.ended or self._sealed:
                return
            self._reason = self._reason or reason
            if not self.begun:
                self._end(CutMissed(self._about(self._reason)))

    def expire(self) -> None:
        """Give it up if its deadline has passed."""
        if monotonic() > self._deadline:
            self.abandon(f"not committed within {self.request.seconds} s")

    def result(self, timeout: float) -> Committed:
        """Return the commit, waiting up to `timeout` seconds, and not past the deadline before it has begun.

        Raises CutMissed if it was given up, TimeoutError, what the store raised.
        """
        limit = monotonic() + timeout
        while not self.ended:
            now = monotonic()
            if now >= limit:
                raise TimeoutError(self._about(f"not committed after {timeout} s"))
            until = limit if self.begun else min(limit, max(self._deadline, now) + 0.001)
            self._ended.wait(until - now)
            if not self.begun:
                self.expire()
        if self._error is not None:
            raise self._error
        assert self._committed is not None
        return self._committed

    def join(self, timeout: float) -> None:
        """Wait until nothing of it goes on; raises TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(self._about(f"its thread still writes after {timeout} s"))

    def begin(self, info: Mapping[str, Any]) -> None:
        """Take the snapshot now and write it in a thread; `info` goes into the commit.

        What fails ends the cut; nothing is raised.
        """
        with self._lock:
            if self.ended:
                return
            try:
                self._begin(info)
            except BaseException as error:
                self._end(error)
                if not isinstance(error, Exception):
                    raise

    def _begin(self, info: Mapping[str, Any]) -> None:
        request = self.request
        kind = request.kind if self._writer.permits(request.kind) else "base"
        scalars = self._tables.scalars()
        started = monotonic()
        save = self._writer.begin(kind, step=request.step, samples=request.samples, engine=scalars)
        try:
            specs = self._tables.engine.tables
            if request.policy is None or kind != request.kind:
                selections = exact_selections(specs, kind)
            else:
                selections = request.policy.selections(specs, kind, _Ranking(request.save))
            snapshot = self._tables.begin(selections, clears_dirty=clears_dirty(kind))
        except BaseException:
            save.abort()
            raise
        work = (save, snapshot, {**request.info, **info, "cut": request.number}, started)
        self._thread = threading.Thread(target=self._run, args=work, name="cpr-cut")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            _undo(save, snapshot)
            raise

    def _run(
        self, save: ChainSave, snapshot: Snapshot | CombinedSnapshot, info: dict[str, Any], started: float
    ) -> None:
        give_way()  # lookups and updates come first
        try:
            committed = self._write(save, snapshot, info, started)
        except BaseException as error:
            self._end(error)
        else:
            self._committed = committed
            self._end(None)

    def _write(
        self, save: ChainSave, snapshot: Snapshot | CombinedSnapshot, info: dict[str, Any], started: float
    ) -> Committed:
        try:
            rows, lookups = self._add_rows(save, snapshot)
            if snapshot.status != "complete":
                raise CprError(self._about("rows were written from outside while they were saved"))
            ref = save.prepare(info={**info, "saved_lookups": lookups, "saved_rows": rows})
            with self._lock:  # from here on it can't be given up
                self._check()
                self._sealed = True
            save.publish()
            snapshot.commit()
            self._told(save.manifest.kind)
        except BaseException:
            _undo(save, snapshot)
            raise
        manifest = save.manifest
        assert manifest.kind in ("base", "delta", "priority")
        return Committed(
            shard=self._tables.shard,
            incarnation=manifest.incarnation,
            number=self.request.number,
            step=manifest.step,
            kind=manifest.kind,
            sequence=ref.sequence,
            crc=ref.crc,
            rows=manifest.rows,
            lookups=lookups,
            bytes_written=manifest.bytes,
            stall_seconds=snapshot.stall_seconds,
            seconds=monotonic() - started,
        )

    def _add_rows(self, save: ChainSave, snapshot: Snapshot | CombinedSnapshot) -> tuple[int, int]:
        """Write all rows as segments; returns their number and their lookups."""
        self._check()
        if isinstance(snapshot, CombinedSnapshot):
            rows, counts = snapshot.add_to(_OneShard(save, self._tables.shard))
            return rows, sum(sum(of_engine) for of_engine in counts)
        snapshot.walk()
        rows = lookups = 0
        names = self._tables.names[0]
        for gathered in snapshot.gather(self._writer.max_segment_bytes, [save.missing]):
            try:
                self._check()
                rows += sum(gathered.rows.values())
                lookups += gathered.lookups
                save.add_gathered(gathered, names)
            except BaseException:
                gathered.close()
                raise
        return rows, lookups

    def _check(self) -> None:
        if self._reason is None and monotonic() > self._deadline:
            self._reason = f"not committed within {self.request.seconds} s"
        if self._reason is not None:
            raise CutMissed(self._about(self._reason))

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self._ended.set()

    def _about(self, what: str) -> str:
        return f"shard {self._tables.shard}: cut {self.request.number} of step {self.request.step}: {what}"


def _undo(save: ChainSave, snapshot: Snapshot | CombinedSnapshot) -> None:
    try:
        save.abort()
    finally:
        snapshot.abort()
