"""The trainer's ledger of lookups, so that what a lost shard never saved is counted exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpr_native.device import DeviceEngine
from cpr_native.recovery.counters import DeviceCounters, bounds_of
from cpr_native.store import ShardRows

if TYPE_CHECKING:
    from cpr_native.modules import Request
    from cpr_native.recovery.parts import Tracked

ShardOf = Callable[[NDArray[Any]], NDArray[Any]]


def routed(
    ids: NDArray[Any],
    offsets: NDArray[Any] | None,
    features: Sequence[int],
    shard_of: Sequence[ShardOf],
    shards: int,
    *,
    frozen: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Return the number of lookups of one batch that go to each shard, [shards].

    `ids` [n] feature-major; `offsets` [features*batch + 1], None for all ids of a single feature;
    `features[f]`: table of feature f; `shard_of[t]`: gives the shards of rows of table t; lookups of `frozen`
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
            counts += np.bincount(shard_of[table](ids[begin:end]), minlength=shards)
    return counts


def shards_of(at: ShardRows, rows: int) -> ShardOf:
    """Return what gives the shards of rows of a table with `rows` rows."""
    if isinstance(at, int):
        return lambda ids: ids // at
    first, spread = at
    return lambda ids: first + ids.astype(np.int64) * spread // rows


class LookupLedger:
    """Counts, per shard, the lookups whose updates no commit contains yet.

    A batch counts when its fused update has run: not for a forward alone, under no_grad, or when the update
    was skipped for a non-finite gradient. It equals the sum of the engine's counters over a shard's rows at
    any time (as long as none of them saturates), but lives with the trainer, so it outlasts the shard.
    The counters of engines on a device are read instead, when a number is asked for, unless a save is
    `in_flight`, which holds a part of them until `saved` was told. `shards`: their number.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._open = np.zeros(shards, np.int64)
        self._total = 0
        self._counters: dict[int, DeviceCounters] = {}
        self.in_flight = False

    @property
    def total(self) -> int:
        """Lookups of all updates so far, all shards."""
        self.read()
        return self._total

    @property
    def unsaved(self) -> NDArray[np.int64]:
        """Lookups per shard that no commit contains, [shards], a copy."""
        self.read()
        return self._open + sum(counters.open for counters in self._counters.values())

    def read(self) -> None:
        """Count what engines on a device have looked up; before rows of theirs are restored, too."""
        if not self.in_flight:
            self._total += sum(counters.read() for counters in self._counters.values())

    def add(self, counts: NDArray[np.int64]) -> None:
        """Count the lookups of one update, [shards]."""
        self._open += counts
        self._total += int(counts.sum())

    def saved(self, counts: NDArray[np.int64]) -> None:
        """Take off the counts that a commit contains: [shards], or [modules, shards] of those watched."""
        if not self._counters:
            self._open -= counts.reshape(-1, self._shards).sum(axis=0)
            return
        for number, of_module in enumerate(counts.reshape(-1, self._shards)):
            if number in self._counters:
                self._counters[number].saved(of_module)
            else:
                self._open -= of_module

    def lose(self, shards: Sequence[int]) -> int:
        """Return the unsaved lookups of `shards` and forget them: their counters died.

        Of engines on a device those that `read` found before.
        """
        chosen = list(shards)
        lost = int(self._open[chosen].sum())
        self._open[chosen] = 0
        for counters in self._counters.values():
            lost += int(counters.open[chosen].sum())
            counters.forget(chosen)
        return lost

    def restarted(self, shard: int, uncounted: int) -> None:
        """Note that the counters of a shard began anew: all of its lookups are saved or lost, and `uncounted`
        more that were not entered here.
        """
        self._open[shard] = 0
        self._total += uncounted

    def rewind(self, total: int) -> None:
        """Set the total to that of the point training went back to, with nothing unsaved."""
        self._open[:] = 0
        for counters in self._counters.values():
            counters.forget(slice(None))
        self._total = total

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, as JSON values."""
        return {"open": self._open.tolist(), "total": self._total}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from counts of `state_dict`."""
        self._open[:] = state_dict["open"]
        self._total = state_dict["total"]

    def watch(
        self, modules: Sequence[Tracked], shard_rows: Sequence[ShardRows], *, counts: bool = True
    ) -> None:
        """Count every update of `modules` from now on; `shard_rows`: where the rows of each table lie.

        `counts`: what the engines' counters hold already is unsaved.
        """
        self._open[:] = 0
        self._counters.clear()
        at = 0
        for number, module in enumerate(modules):
            end = at + len(module.plan.tables)
            if isinstance(module.engine, DeviceEngine):
                self._counters[number] = self._counters_of(module, module.engine, shard_rows[at:end])
            else:
                self._watch(module, shard_rows[at:end], counts=counts)
            at = end
        self._total = int(self._open.sum())
        self.read()

    def _counters_of(
        self, module: Tracked, engine: DeviceEngine, shard_rows: Sequence[ShardRows]
    ) -> DeviceCounters:
        tables = zip(module.plan.tables, module.plan.trackers, shard_rows, strict=True)
        bounds = [
            bounds_of(at, config.num_embeddings, self._shards) if trackers.mfu else None
            for config, trackers, at in tables
        ]
        return DeviceCounters(engine, bounds, self._shards)

    def _watch(self, module: Tracked, shard_rows: Sequence[ShardRows], *, counts: bool) -> None:
        features = module.plan.features
        configs = module.plan.tables
        shard_of = [
            shards_of(at, config.num_embeddings) for at, config in zip(shard_rows, configs, strict=True)
        ]
        for table, of in enumerate(shard_of):
            if not counts or not module.plan.trackers[table].mfu:
                continue  # without: never looked up
            found = module.engine.counts(table)
            rows = np.flatnonzero(found)
            np.add.at(self._open, of(rows), found[rows].astype(np.int64))

        def looked_up(request: Request, frozen: Sequence[int]) -> Callable[[], None]:
            offsets = None if request.offsets is None else request.offsets.numpy()
            of_batch = routed(request.ids.numpy(), offsets, features, shard_of, self._shards, frozen=frozen)
            return lambda: self.add(of_batch)

        module.observe_updates(looked_up)
