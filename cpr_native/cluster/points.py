"""Going back to one commit of a shard, to the bit."""

from __future__ import annotations

import threading

from cpr_native.cluster.spec import ClusterSpec
from cpr_native.cluster.tables import ShardTables
from cpr_native.shard import Restored, restore_rows
from cpr_native.store import RestorePlan
from cpr_native.store.manifest import Ref
from cpr_native.store.restore import exact_plan


class ExactPoints:
    """Reads the chain of `shard` for its commits, and restores `tables` to one."""

    def __init__(self, spec: ClusterSpec, shard: int, tables: ShardTables) -> None:
        self._store = spec.open_store()
        self._shard = shard
        self._tables = tables
        self._lock = threading.Lock()
        self._verified: tuple[Ref, RestorePlan] | None = None

    def verify(self, sequence: int, crc: int) -> RestorePlan:
        """Return what an exact restore of a commit reads, every byte checked; the last one is kept.

        Raises CorruptionError, NoCheckpointError, OSError.
        """
        ref = Ref(sequence=sequence, crc=crc)
        with self._lock:
            if self._verified is None or self._verified[0] != ref:
                reader = self._store.directory().shard(self._shard)
                plan = RestorePlan(mode="exact", chains=(exact_plan(reader, self._shard, ref),))
                plan.verify()
                self._verified = ref, plan
            return self._verified[1]

    def restore(self, plan: RestorePlan) -> Restored:
        """Put rows, optimizer state and scalars back; nothing else may run. Raises as `restore_rows`."""
        with self._lock:
            self._verified = None
        done = restore_rows(self._tables.engine, self._tables.ranges, plan, dirty="clear")
        self._tables.set_scalars(plan.chains[0].commits[-1].engine)
        return done
