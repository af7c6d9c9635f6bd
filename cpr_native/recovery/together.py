"""The part of a manager that goes on in shared memory together with the other processes of its gang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpr_native.recovery import restore
from cpr_native.recovery.dense import decode, encode
from cpr_native.recovery.gang import Gang
from cpr_native.recovery.lasting import Lasting
from cpr_native.recovery.report import RecoveryReport
from cpr_native.recovery.shared_state import Left
from cpr_native.store import Placement
from cpr_native.store.manifest import DATA_KINDS


class Together(Lasting):
    """A manager whose process may be one of several; they agree on what each goes on from."""

    _gang: Gang | None
    _placement: Placement
    _half: restore.HalfRestored

    def _anywhere(self, here: bool) -> bool:
        """Return whether something is so in any process of the gang."""
        return here if self._gang is None else any(self._gang.gather(here))

    def _reattached_together(self, gang: Gang, started: float) -> RecoveryReport | None:
        """Go on where the processes that have kept their memory were; None, with nothing changed, where none
        has, or, under full recovery, not all.

        One that has lost its memory restores its shard's newest rows. Where the last step was not the same
        in all, that of those furthest on counts, and its dense side is everybody's.
        """
        left = None if self._shared is None else self._shared.find(self._store)
        offers = gang.gather(None if left is None else int(left.books["steps"]))
        lost = tuple(shard for shard, steps in enumerate(offers) if steps is None)
        if len(lost) == gang.shards:
            return None
        if lost and self.policy.recovery == "full":
            if self._shared is not None and left is not None:
                self._shared.refuse(f"shards {list(lost)} have lost theirs: all go back to one step")
            return None
        newest = max(steps for steps in offers if steps is not None)
        donor = offers.index(newest)
        books = gang.from_one(None if left is None else {**left.books}, donor)
        assert books is not None
        behind = left is None or left.books["steps"] < newest
        if left is None:
            report = self._restore_alone(books, lost, started)
        else:
            report = self._attach(left, lost, started)
        self._share_dense(gang, donor, books, behind=behind)
        self._share_schedule(gang, donor)
        self._leave()
        return report

    def _attach(self, left: Left, lost: tuple[int, ...], started: float) -> RecoveryReport:
        every = tuple(range(self._placement.shards))

        def report(fields: dict[str, Any]) -> RecoveryReport:
            _, pls = self._losses.shards_lost((), samples=self.samples)
            return self._report(lost or every, started, [], pls=pls, **fields)

        return self._go_on(left, report)

    def _restore_alone(
        self, books: Mapping[str, Any], lost: tuple[int, ...], started: float
    ) -> RecoveryReport:
        """Restore this shard as partial recovery does, and go on from the books of another process."""
        assert self._gang is not None
        own = self._gang.shard
        self._tables.sync()
        self._saves.open(self._store)
        try:
            self._invalidate()
            restored = restore.restore_shards(self.shards, [own], self._half, restart=True)
            self._saves.rejoin(books, restored[0])
        except BaseException:
            self._saves.close()
            raise
        self.steps, self.samples = books["steps"], books["samples"]
        self._tables.module.load_optimizer_scalars(books["scalars"])
        info, samples = self._newest_info(own)
        self._losses.reattached(books["pls"])
        lookups, pls = self._losses.own_shard_lost(info, at=samples, samples=self.samples)
        return self._report(
            lost, started, restored, mode="partial", restart=True, lost_lookups=lookups, pls=pls,
            refused=self._refused,
        )  # fmt: skip

    def _newest_info(self, shard: int) -> tuple[Mapping[str, Any], int]:
        """Return what the newest save in a shard's chain noted, and its samples."""
        reader = self._store.directory().shard(shard)
        at = reader.newest([])
        while at is not None and at[0].kind not in DATA_KINDS:
            parent = at[0].parent
            at = None if parent is None else reader.load(parent.sequence)
        return ({}, 0) if at is None else (at[0].info, at[0].samples)

    def _share_schedule(self, gang: Gang, donor: int) -> None:
        """Have saves due when they are in the process of `donor`: all begin each at the same step."""
        here: dict[str, Any] = {
            "due": self._saves.due, "due_saves": self._saves.due_saves,
            "last": self.pace.last, "pace": self.pace.state_dict(),
        }  # fmt: skip
        there = gang.from_one(here, donor)
        self._saves.due, self._saves.due_saves = there["due"], there["due_saves"]
        self.pace.load_state_dict(there["pace"])
        self.pace.last = there["last"]

    def _share_dense(self, gang: Gang, donor: int, books: Mapping[str, Any], *, behind: bool) -> None:
        """Take the dense side and the position of the process of `donor`, where this one's is `behind`."""
        wanted = gang.gather(behind)
        if not any(wanted):
            return
        data = gang.from_one(encode(self._dense.alone()) if gang.shard == donor else b"", donor)
        if behind:
            state = decode(data)
            self._dense.check(state)
            self._dense.restore(state)
            self.steps, self.samples = books["steps"], books["samples"]
