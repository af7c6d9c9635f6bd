"""In which order updates are applied: steps in turn, within a step the ranks in turn, each once."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_native.cluster.messages import QueueFull, StepGap
from cpr_native.cluster.tables import RowGradients


class StepOrder:
    """What was applied of each rank, and what waits for other ranks. Not for several threads at once.

    `watermarks`: newest applied step per rank. A step is due when every rank whose watermark is below it has
    sent it; ranks that are beyond it, because they lost steps or had them acknowledged by a life that died,
    have no part in it. `most`: updates of one rank that may wait.
    """

    def __init__(self, watermarks: Sequence[int], most: int) -> None:
        self._watermarks = list(watermarks)
        self._queued: list[dict[int, RowGradients]] = [{} for _ in watermarks]
        self._most = most

    @property
    def watermarks(self) -> tuple[int, ...]:
        """Newest applied step of each rank."""
        return tuple(self._watermarks)

    @property
    def received(self) -> tuple[int, ...]:
        """Newest step of each rank that is here, applied or not."""
        return tuple(w + len(q) for w, q in zip(self._watermarks, self._queued, strict=True))

    @property
    def applied(self) -> int:
        """The step up to which all ranks' updates are applied."""
        return min(self._watermarks)

    @property
    def ranks(self) -> int:
        """Their number."""
        return len(self._watermarks)

    def is_known(self, rank: int, step: int) -> bool:
        """Whether a rank's update of `step` is here, applied or waiting: it is not to be taken again."""
        return step <= self.received[rank]

    def put(self, rank: int, step: int, update: RowGradients) -> None:
        """Take an update that is not known.

        Raises StepGap when the one before it is missing, QueueFull; nothing is taken then.
        """
        received = self.received[rank]
        if step != received + 1:
            raise StepGap(f"rank {rank}: expected the update of step {received + 1} next, got step {step}")
        if len(self._queued[rank]) >= self._most:
            raise QueueFull(
                f"rank {rank}: {len(self._queued[rank])} of its updates wait for step {self.applied + 1} of "
                f"ranks {self.missing()}"
            )
        self._queued[rank][step] = update

    def missing(self) -> list[int]:
        """Return the ranks whose update the next step waits for."""
        step = self.applied + 1
        return [
            rank
            for rank, watermark in enumerate(self._watermarks)
            if watermark < step and step not in self._queued[rank]
        ]

    def due(self) -> tuple[int, list[RowGradients]] | None:
        """Return the next step and its updates in the order of ranks; None while one is missing."""
        if self.missing():
            return None
        step = self.applied + 1
        return step, [queued[step] for queued in self._queued if step in queued]

    def done(self, step: int) -> None:
        """Note that the step that was due is applied."""
        for rank, queued in enumerate(self._queued):
            if queued.pop(step, None) is not None:
                self._watermarks[rank] = step

    def skip(self, rank: int, step: int) -> int:
        """Count a rank's steps up to `step` as applied though they are not; returns how many were not.

        Its updates that wait are dropped: it sends what is above `step` again.
        """
        self._queued[rank].clear()
        lost = max(0, step - self._watermarks[rank])
        self._watermarks[rank] += lost
        return lost

    def restart(self, watermarks: Sequence[int]) -> None:
        """Forget all updates that wait and go on from `watermarks`, perhaps of another number of ranks."""
        self._watermarks = list(watermarks)
        self._queued = [{} for _ in watermarks]
