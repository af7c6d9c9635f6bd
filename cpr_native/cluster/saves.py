"""The saves of one shard: cuts that were asked for, one in flight, and the folding of its chain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cpr_native.cluster.asking import within
from cpr_native.cluster.cuts import Cut, check_policy
from cpr_native.cluster.messages import Committed, CutMissed, CutRequest, Tag
from cpr_native.cluster.opening import Opened
from cpr_native.cluster.steps import StepRunner
from cpr_native.errors import FencedError
from cpr_native.store.housekeeping import Housekeeping

_REMEMBERED = 16
_SECONDS = 60.0  # for a cut that was given up to end
_ABANDONED_SECONDS = 2.0  # the same, when the next one is asked for
_DRAIN = -1  # number of the cut that `drain` makes


class ShardSaves:
    """Makes cuts between the steps of `runner`; any thread may call.

    `newest`: sequence number and step of the newest save in the shard's history, 0, 0 without one.
    """

    def __init__(self, opened: Opened, runner: StepRunner) -> None:
        self._writer = opened.writer
        self._tables = opened.tables
        self._runner = runner
        self._name = f"shard {opened.tables.shard}"
        self._cuts: OrderedDict[int, Cut] = OrderedDict()
        self._saved = (0, 0) if opened.commit is None else (opened.commit.sequence, opened.commit.step)
        spec = opened.tables.spec
        self._housekeeping = Housekeeping(
            spec.open_store().path, [opened.writer], keep=None, compact=spec.compact
        )

    def ask(self, request: CutRequest) -> None:
        """See `ShardServer.cut`."""
        check_policy(request.policy)
        with self._runner.state:
            flying = self._runner.cut
        if flying is not None and flying.abandoned:
            with suppress(TimeoutError):
                flying.join(_ABANDONED_SECONDS)
        with self._runner.state:
            self._runner.check(Tag(request.generation, max(1, request.step), 0, request.incarnation))
            if request.number not in self._cuts:
                self._plan(request)
        self._runner.advance()

    def _plan(self, request: CutRequest) -> Cut:
        cut = Cut(request, self._writer, self._tables, self._housekeeping.committed)
        self._runner.plan_cut(cut)
        self._cuts[request.number] = cut
        while len(self._cuts) > _REMEMBERED:
            self._cuts.popitem(last=False)
        return cut

    def committed(self, number: int, timeout: float) -> Committed:
        """See `ShardServer.committed`."""
        with self._runner.state:
            cut = self._cuts.get(number)
        if cut is None:
            raise CutMissed(f"{self._name}, incarnation {self._runner.incarnation}: no cut {number}")
        return self._outcome(cut, timeout)

    def _outcome(self, cut: Cut, timeout: float) -> Committed:
        try:
            return cut.result(timeout)
        except FencedError as error:
            with self._runner.state:
                self._runner.error = self._runner.error or error
            raise

    def abandon(self, number: int, reason: str) -> None:
        """See `ShardServer.abandon`."""
        with self._runner.state:
            cut = self._cuts.get(number)
        if cut is not None:
            cut.abandon(reason)

    def drain(self, seconds: float) -> Committed:
        """See `ShardServer.drain`."""
        left = within(seconds)
        with self._runner.exclusively("drain"):
            self._runner.pause()
            with self._runner.state:
                flying = self._runner.cut
            if flying is not None:
                if not flying.begun:
                    flying.abandon("the shard is drained")
                flying.join(left())
            with self._runner.state:
                self._cuts.pop(_DRAIN, None)
                cut = self._plan(
                    CutRequest(
                        number=_DRAIN,
                        generation=self._runner.generation,
                        incarnation=self._runner.incarnation,
                        step=self._runner.order.applied,
                        kind="delta",
                        seconds=left(),
                    )
                )
            self._runner.begin_cut(cut)
        return self._outcome(cut, left())

    @contextmanager
    def settled(self, reason: str) -> Iterator[None]:
        """Give the cut in flight up, and fold nothing while the block runs; raises TimeoutError."""
        with self._housekeeping.paused():
            self._runner.settle_cut(reason)
            yield

    def restart(self, sequence: int, step: int) -> None:
        """Note that history goes on from a save; `runner.state` is held."""
        self._saved = (sequence, step)
        self._cuts.clear()

    @property
    def newest(self) -> tuple[int, int]:
        """Sequence number and step; `runner.state` is held."""
        for cut in self._cuts.values():
            done = cut.committed
            if done is not None and done.sequence > self._saved[0]:
                self._saved = (done.sequence, done.step)
        return self._saved

    @property
    def folding_error(self) -> str | None:
        """What stopped the last folding of the chain."""
        return self._housekeeping.compaction_error

    def close(self) -> None:
        """Give a cut in flight up, end what is folded and free the chain."""
        for cut in list(self._cuts.values()):
            cut.abandon("the shard ends")
            cut.join(_SECONDS)
        self._housekeeping.close()
        self._writer.close()
