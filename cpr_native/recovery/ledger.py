"""The trainer's ledger of lookups, so that what a lost shard never saved is counted exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cpr_native.modules import Request
    from cpr_native.recovery.parts import Tracked


def routed(
    ids: NDArray[Any],
    offsets: NDArray[Any] | None,
    features: Sequence[int],
    block_rows: Sequence[int],
    shards: int,
    *,
    frozen: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Return the number of lookups of one batch that go to each shard, [shards].

    `ids` [n] feature-major; `offsets` [features*batch + 1], None for all ids of a single feature;
    `features[f]`: table of feature f; `block_rows[t]`: rows per shard of table t; lookups of `frozen`
    tables are left out. Repeated ids count each time, as the engine's counters do.
    """
    bounds = (
        np.array([0, len(ids)])
        if offsets is None
        else offsets[:: (len(offsets) - 1) // len(features) or None]
    )
    counts = np.zeros(shards, np.int64)
    for feature, table in enumerate(features):
        if table not in frozen and len(bounds) > 1:
            begin, end = bounds[feature], bounds[feature + 1]
            counts += np.bincount(ids[begin:end] // block_rows[table], minlength=shards)
    return counts


class LookupLedger:
    """Counts, per shard, the lookups whose updates no commit contains yet.

    A batch counts when its fused update has run: not for a forward alone, under no_grad, or when the update
    was skipped for a non-finite gradient. It equals the sum of the engine's counters over a shard's rows at
    any time (as long as none of them saturates), but lives with the trainer, so it outlasts the shard.
    `shards`: their number.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._open = np.zeros(shards, np.int64)
        self._total = 0

    @property
    def total(self) -> int:
        """Lookups of all updates so far, all shards."""
        return self._total

    @property
    def unsaved(self) -> NDArray[np.int64]:
        """Lookups per shard that no commit contains, [shards], a copy."""
        return np.array(self._open)

    def add(self, counts: NDArray[np.int64]) -> None:
        """Count the lookups of one update, [shards]."""
        self._open += counts
        self._total += int(counts.sum())

    def saved(self, counts: NDArray[np.int64]) -> None:
        """Take off the counts that a commit contains, [shards]."""
        self._open -= counts

    def lose(self, shards: Sequence[int]) -> int:
        """Return the unsaved lookups of `shards` and forget them: their counters died."""
        chosen = list(shards)
        lost = int(self._open[chosen].sum())
        self._open[chosen] = 0
        return lost

    def fraction(self, lookups: int) -> float:
        """Return `lookups` as a fraction of all lookups so far; 0 before the first."""
        return lookups / self._total if self._total else 0.0

    def rewind(self, total: int) -> None:
        """Set the total to that of the point training went back to, with nothing unsaved."""
        self._open[:] = 0
        self._total = total

    def watch(self, modules: Sequence[Tracked], block_rows: Sequence[int]) -> None:
        """Count every update of `modules` from now on; `block_rows`: rows per shard of each of their tables.

        What the engines' counters hold already is unsaved.
        """
        self._open[:] = 0
        at = 0
        for module in modules:
            end = at + len(module.plan.tables)
            self._watch(module, block_rows[at:end])
            at = end
        self._total = int(self._open.sum())

    def _watch(self, module: Tracked, block_rows: Sequence[int]) -> None:
        features = module.plan.features
        for table, block in enumerate(block_rows):
            if not module.plan.trackers[table].mfu:
                continue  # never looked up
            counts = module.engine.counts(table)
            blocks = np.add.reduceat(counts, np.arange(0, len(counts), block), dtype=np.int64)
            self._open[: len(blocks)] += blocks

        def looked_up(request: Request, frozen: Sequence[int]) -> Callable[[], None]:
            offsets = None if request.offsets is None else request.offsets.numpy()
            counts = routed(request.ids.numpy(), offsets, features, block_rows, self._shards, frozen=frozen)
            return lambda: self.add(counts)

        module.observe_updates(looked_up)
