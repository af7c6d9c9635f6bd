"""`ShardServer`: the rows of one shard, behind the protocol. Whatever carries messages calls its methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.cluster.contents import copies, dirty, memory
from cpr_native.cluster.messages import (
    Ack,
    Committed,
    CutRequest,
    Resumed,
    RollbackRequest,
    RowIds,
    ShardRecovery,
    ShardStatus,
    Tag,
)
from cpr_native.cluster.opening import open_shard
from cpr_native.cluster.order import StepOrder
from cpr_native.cluster.points import ExactPoints
from cpr_native.cluster.saves import ShardSaves
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.cluster.steps import StepRunner
from cpr_native.cluster.tables import RowGradients
from cpr_native.errors import CprError
from cpr_native.shard import Restored


class ShardServer:
    """One life of a shard: making it is the recovery (`open_shard`); `recovery` says what was done.

    Any thread may call any method. `lookup`, `committed` and `drain` may wait for other calls or a save; all
    others return without that, so one thread can serve them in turn. Updates are applied in the thread of
    the call that completes a step. A message for another incarnation or generation, or out of order, raises
    a `ProtocolError` and changes nothing.

    An error that leaves the rows in doubt (an update that ran out of memory) is final: every later call
    raises it, and `fatal`, if given, is called with it once, so that the process can end and be replaced.
    """

    def __init__(
        self, spec: ClusterSpec, shard: int, *, fatal: Callable[[BaseException], None] | None = None
    ) -> None:
        opened = open_shard(spec, shard)
        self.spec = spec
        self.shard = shard
        self.recovery: ShardRecovery = opened.recovery
        self.incarnation = opened.writer.incarnation
        self._writer = opened.writer
        self._tables = opened.tables
        self._books = opened.books
        self._points = ExactPoints(spec, shard, opened.tables)
        self._runner = StepRunner(
            opened.tables,
            StepOrder(opened.recovery.watermarks, spec.max_queued),
            incarnation=self.incarnation,
            generation=opened.generation,
            watcher=self,
            fatal=fatal,
        )
        self._saves = ShardSaves(opened, self._runner)
        self._state = self._runner.state
        self.ended()

    # Calls of trainers

    def lookup(self, tag: Tag, rows: RowIds) -> NDArray[np.float32]:
        """Return rows, float32, flat, table after table, once step `tag.step - 1 - staleness` is applied.

        Raises ProtocolError, ValueError, TypeError and IndexError for bad rows; TimeoutError after
        `spec.lookup_seconds`, naming the ranks whose updates are missing.
        """
        self._tables.check(rows)
        needed = tag.step - 1 - self.spec.staleness
        with self._runner.reading(tag, needed, self.spec.lookup_seconds):
            return self._tables.lookup(rows)

    def update(
        self, tag: Tag, rows: RowIds, gradient: NDArray[np.float32], multiplicity: NDArray[np.uint32]
    ) -> Ack:
        """Take the gradients of a rank's step, to be applied in order; every rank sends every step.

        One that is here already is acknowledged again. The arrays are borrowed until they are applied.
        Raises ProtocolError (StepGap, QueueFull, ...), ValueError, TypeError, IndexError.
        """
        sent = RowGradients(rows, gradient, multiplicity)
        with self._state:
            self._runner.check(tag)
        self._tables.check_gradients(sent)
        return Ack(self.incarnation, self._runner.take(tag, sent))

    def resume(
        self, generation: int, incarnation: int, rank: int, ranks: int, first_unacknowledged: int
    ) -> Resumed:
        """Tell a new life where a rank is: it has no answer for updates from `first_unacknowledged` on.

        Steps before it count as applied; those that are not in the rows are lost, and counted here once. A
        generation that is newer than the shard knows is taken over, with its number of ranks.
        Raises ProtocolError.
        """
        with self._runner.exclusively("resume"):
            with self._state:
                self._runner.check_life(incarnation)
                if generation > self._runner.generation:
                    self._runner.generation = generation
                    self._runner.order.restart([self._runner.order.applied] * ranks)
                self._runner.check(Tag(generation, first_unacknowledged, rank, incarnation))
                before = self._runner.order.applied
                lost = self._runner.order.skip(rank, first_unacknowledged - 1)
                watermark = self._runner.order.watermarks[rank]
                passed = self._runner.order.applied - before
            self._tables.pass_over(passed)
            self.ended()
        return Resumed(self.incarnation, watermark, lost)

    # Calls of the trainers' manager

    def begin_generation(self, generation: int, incarnation: int, step: int, ranks: int) -> tuple[int, ...]:
        """Go on with a new group of `ranks` trainers, whose first step is `step + 1`; rows stay as they are.

        Updates that wait are dropped, a cut in flight is given up. Returns the watermarks before. Raises
        ProtocolError, OSError; TimeoutError when a save's thread does not end.
        """
        with self._runner.exclusively("begin_generation"):
            self._runner.check_newer(generation, incarnation)
            with self._saves.settled(f"generation {generation} begins"):
                self._writer.rollback(None, info={"generation": generation})
            with self._state:
                before = self._runner.order.watermarks
                self._runner.generation = generation
                self._runner.order.restart([step] * ranks)
            self._tables.pass_over(max(0, step - min(before)))
            self.ended()
        return before

    def verify(self, sequence: int, crc: int) -> None:
        """Read every byte of what an exact restore of a commit of this shard needs, for `rollback`.

        Raises CorruptionError, NoCheckpointError, OSError.
        """
        self._points.verify(sequence, crc)

    def rollback(self, request: RollbackRequest) -> ShardRecovery:
        """Go back to a commit: rows, optimizer state and scalars as at its step; the next generation begins.

        Updates that wait are dropped, a cut in flight is given up. After an error in the middle every call
        but `rollback` raises until one succeeds. Raises as `begin_generation`, and CorruptionError.
        """
        started = monotonic()
        with self._runner.exclusively("rollback"):
            self._runner.check_newer(request.generation, request.incarnation)
            with self._saves.settled(f"rolled back to step {request.step}"):
                done = self._go_back(request)
            self.ended()
        return ShardRecovery(
            shard=self.shard,
            incarnation=self.incarnation,
            source="checkpoint",
            watermarks=(request.step,) * request.ranks,
            rows=done.rows,
            reset=done.reset,
            seconds=monotonic() - started,
            skipped=done.skipped,
        )

    def _go_back(self, request: RollbackRequest) -> Restored:
        plan = self._points.verify(request.sequence, request.crc)
        with self._state:
            self._runner.error = CprError(f"a rollback to step {request.step} did not end")
        if self._books is not None:
            self._books.invalidate()
        done = self._points.restore(plan)
        self._writer.rollback(plan.chains[0].head, info={"generation": request.generation})
        with self._state:
            self._runner.error = None
            self._runner.generation = request.generation
            self._runner.order.restart([request.step] * request.ranks)
            self._runner.forget()
            self._saves.restart(request.sequence, request.step)
        return done

    def set_scalars(self, generation: int, incarnation: int, step: int, scalars: Mapping[str, float]) -> None:
        """Set hyperparameters, named as in `native_scalars`, from step `step` on.

        Raises ProtocolError for a step that is applied already, ValueError for names that the optimizer
        hasn't.
        """
        self._tables.check_scalars(scalars)
        with self._state:
            self._runner.check(Tag(generation, step, 0, incarnation))
            self._runner.schedule(step, scalars)

    def cut(self, request: CutRequest) -> None:
        """Take a snapshot after step `request.step` of all ranks and before the next, and commit it.

        Returns as soon as that is certain to happen there, or to be given up. Call it before any rank sends
        the step after. `committed` has the outcome. Raises ProtocolError (CutMissed: that step is past, or
        another cut is in flight), ValueError for a policy that shards don't have.
        """
        self._saves.ask(request)

    def committed(self, number: int, timeout: float) -> Committed:
        """Return the commit of a cut, waiting up to `timeout` seconds.

        Raises CutMissed when it was given up or is not known to this life of the shard; TimeoutError; what
        the store raised. After FencedError, a newer life has the shard, and this one refuses all calls.
        """
        return self._saves.committed(number, timeout)

    def abandon(self, number: int, reason: str) -> None:
        """Give a cut up, unless it is committed or its commit is being named; its marks are merged back."""
        self._saves.abandon(number, reason)

    def drain(self, seconds: float) -> Committed:
        """Apply nothing any more and commit what is applied, within `seconds`: then the process may end.

        Updates are taken and wait for the next life, to which clients send them again: nothing is lost. May
        be repeated. It waits for a save in flight. Raises CutMissed, TimeoutError, what the store raises.
        """
        return self._saves.drain(seconds)

    def status(self) -> ShardStatus:
        """Return what there is to know, in whatever state it is."""
        with self._state:
            runner, (sequence, step) = self._runner, self._saves.newest
            return ShardStatus(
                shard=self.shard,
                incarnation=self.incarnation,
                generation=runner.generation,
                pid=os.getpid(),
                watermarks=runner.order.watermarks,
                received=runner.order.received,
                rows={row_range.name: len(row_range) for row_range in self._tables.ranges},
                dirty=dirty(self._tables),
                skipped=runner.skipped,
                memory=memory(self._tables),
                last_commit=sequence or None,
                last_step=step,
                cut=None if runner.cut is None else runner.cut.request.number,
                error=None if runner.error is None else str(runner.error),
                recovery=self.recovery,
            )

    def rows(self, table: str) -> dict[str, Any]:
        """Return copies of all that the shard has of a table, for checks and exports; see `copies`."""
        with self._runner.exclusively("rows"):
            return copies(self._tables, table)

    def close(self) -> None:
        """Give a cut in flight up and free the chain; a second call does nothing."""
        self._saves.close()

    # What the runner tells, and others ask

    def begins(self, updates: Sequence[RowGradients]) -> None:
        """Keep the rows that are about to be written, in shared memory."""
        if self._books is not None:
            self._books.begins(updates)

    def ended(self) -> None:
        """Note in shared memory that the rows are those of the watermarks."""
        if self._books is not None:
            with self._state:
                watermarks, generation = self._runner.order.watermarks, self._runner.generation
                saved = self._saves.newest[0]
            self._books.commit(
                incarnation=self.incarnation,
                generation=generation,
                watermarks=watermarks,
                saved=saved or None,
            )
