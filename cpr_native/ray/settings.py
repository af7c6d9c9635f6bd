"""Settings of a cluster run: frozen, checked, sent to every process of it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HealthProfile:
    """How soon Ray takes a silent node for dead, and how soon a caller hears of a dead process.

    A node is asked every `period_ms` from `initial_delay_ms` after it joined on, each time waits `timeout_ms`
    for the answer, and is dead after `failure_threshold` failures in a row: with these numbers after 2 s
    (Ray's own: 15 s and more). Shorter ones take a node that is merely busy for dead. `death_info_ms`: how
    long the caller of a process that ended waits for the reason before it raises (Ray's own: 1 s); it looks
    at that every `caller_check_ms` (Ray's own: 1 s). Not of health, but of the same environment:
    `message_bytes`: rows and gradients up to this size travel in the message itself, larger ones through the
    object stores of both nodes (Ray's own: 100 KB).
    """

    initial_delay_ms: int = 1000
    period_ms: int = 500
    timeout_ms: int = 500
    failure_threshold: int = 3
    death_info_ms: int = 20
    caller_check_ms: int = 50
    message_bytes: int = 2 * 2**20

    def __post_init__(self) -> None:
        for name in (
            "initial_delay_ms",
            "period_ms",
            "timeout_ms",
            "failure_threshold",
            "death_info_ms",
            "caller_check_ms",
            "message_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def environment(self) -> dict[str, str]:
        """Return the environment variables that every process of Ray is to have: head, nodes and drivers."""
        return {
            "RAY_health_check_initial_delay_ms": str(self.initial_delay_ms),
            "RAY_health_check_period_ms": str(self.period_ms),
            "RAY_health_check_timeout_ms": str(self.timeout_ms),
            "RAY_health_check_failure_threshold": str(self.failure_threshold),
            "RAY_timeout_ms_task_wait_for_death_info": str(self.death_info_ms),
            "RAY_max_direct_call_object_size": str(self.message_bytes),
            "RAY_core_worker_internal_heartbeat_ms": str(self.caller_check_ms),
        }


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where the shards of a run live and how long anything may take. All times in seconds.

    `run`: names the run; its actors are in the Ray namespace `cpr-RUN`. `resource`: what a node must offer
    for a shard, one unit (`ray start --resources '{"cpr_shard": 1}'`); a node with more could be given two
    shards. `cpus`: Ray CPUs that a shard occupies. `call_timeout`: for an answer of a shard that lives;
    `start_timeout`: until every shard is up, None to wait for capacity for ever; `report_every`: between two
    "PENDING" lines. `grace`: what a shard whose node is drained or gets SIGTERM may take for its last commit.
    `lookups`: lookups that a shard serves at once; one that waits for another rank's update occupies one.
    """

    run: str
    resource: str = "cpr_shard"
    cpus: float = 1.0
    call_timeout: float = 30.0
    start_timeout: float | None = 600.0
    report_every: float = 5.0
    grace: float = 25.0
    lookups: int = 16

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.run):
            raise ValueError(f"run: expected 1 to 64 letters, digits, '-', '_' or '.', got {self.run!r}")
        if not self.resource or self.resource in ("CPU", "GPU", "memory", "object_store_memory"):
            raise ValueError(f"resource: expected the name of a custom resource, got {self.resource!r}")
        if self.cpus < 0:
            raise ValueError(f"cpus: expected at least 0, got {self.cpus}")
        if self.lookups < 1:
            raise ValueError(f"lookups: expected at least 1, got {self.lookups}")
        for name in ("call_timeout", "report_every", "grace"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0 s, got {getattr(self, name)}")
        if self.start_timeout is not None and not self.start_timeout > 0:
            raise ValueError(f"start_timeout: expected more than 0 s or None, got {self.start_timeout}")

    @property
    def namespace(self) -> str:
        """Of the run's actors in Ray."""
        return f"cpr-{self.run}"

    def actor_name(self, shard: int) -> str:
        """Return the name of a shard's actor in the namespace."""
        return f"shard-{shard}"
