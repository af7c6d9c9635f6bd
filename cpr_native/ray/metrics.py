"""Figures of shards and training as Ray's own metrics, which it exports for Prometheus."""

from __future__ import annotations

import threading
from typing import Any

from ray.util.metrics import Counter, Gauge

from cpr_native.cluster.server import ShardServer
from cpr_native.ray.log import log

_EVERY = 10.0  # seconds


class ShardMetrics:
    """Sets the gauges of one shard every 10 s, in a thread of its own, until `close`.

    All begin with `cpr_shard_` and have the tags `run` and `shard`.
    """

    def __init__(self, run: str, server: ShardServer) -> None:
        self._server = server
        self._tags: dict[str, Any] = {"run": run, "shard": str(server.shard)}
        self._gauges = {
            name: Gauge(f"cpr_shard_{name}", description=text, tag_keys=("run", "shard"))
            for name, text in (
                ("incarnation", "Which life of the shard this is"),
                ("applied_step", "Newest training step that is applied"),
                ("waiting_updates", "Updates of the rank that is furthest ahead that wait for others"),
                ("rows", "Rows that the shard holds"),
                ("dirty_rows", "Rows that were updated since the last base or delta commit"),
                ("memory_bytes", "Bytes of rows, optimizer state and trackers"),
                ("commit_step", "Step of the newest commit"),
                ("restore_seconds", "What the begin of this life took"),
                ("skipped_steps", "Steps with a gradient that was not finite"),
            )
        }
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="cpr-metrics", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self.export()
            except Exception as error:
                log("metrics_failed", **self._tags, error=f"{type(error).__name__}: {error}")
            if self._ended.wait(_EVERY):
                return

    def export(self) -> None:
        """Set all gauges now."""
        status = self._server.status()
        values = {
            "incarnation": status.incarnation,
            "applied_step": min(status.watermarks),
            "waiting_updates": max(
                received - applied
                for received, applied in zip(status.received, status.watermarks, strict=True)
            ),
            "rows": sum(status.rows.values()),
            "dirty_rows": sum(status.dirty.values()),
            "memory_bytes": sum(status.memory.values()),
            "commit_step": status.last_step,
            "restore_seconds": status.recovery.seconds,
            "skipped_steps": status.skipped,
        }
        for name, value in values.items():
            self._gauges[name].set(float(value), tags=self._tags)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()


class TrainingMetrics:
    """What the trainer's side knows, with the tag `run`: `cpr_pls` and counters of what failures cost."""

    def __init__(self, run: str) -> None:
        self._tags = {"run": run}
        self._pls = Gauge("cpr_pls", description="Portion of lost lookups so far", tag_keys=("run",))
        self._counters = {
            name: Counter(f"cpr_{name}", description=text, tag_keys=("run",))
            for name, text in (
                ("recoveries", "Recoveries from failures"),
                ("lost_lookups", "Lookups whose updates are gone"),
                ("recovery_seconds", "Time that recoveries took"),
            )
        }

    def recovered(self, *, pls: float, lost_lookups: int, seconds: float) -> None:
        """Count one recovery. `pls`: of the run so far; `lost_lookups`, `seconds`: of this recovery."""
        self._pls.set(pls, tags=self._tags)
        for name, value in (("recoveries", 1), ("lost_lookups", lost_lookups), ("recovery_seconds", seconds)):
            if value > 0:
                self._counters[name].inc(float(value), tags=self._tags)
