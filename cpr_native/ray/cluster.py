"""`RayCluster`: the shards of one run as actors, from their launch to their end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from cpr_native.cluster.handle import ShardLost
from cpr_native.cluster.messages import ShardRecovery, ShardStatus
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.errors import CprError
from cpr_native.ray import board, internals, probe
from cpr_native.ray.actor import ShardLife, actor_class
from cpr_native.ray.capacity import capacity, pending_line
from cpr_native.ray.directory import RayShards, answer
from cpr_native.ray.log import log
from cpr_native.ray.settings import ClusterSettings

_PROBE_SECONDS = 120.0
_STOP_SECONDS = 10.0
_RELEASE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """One shard as it is now.

    `state`: of its actor, as Ray names it ("ALIVE", "RESTARTING", ...); `restarts`: how often Ray began it
    anew; `life` and `status`: None when it did not answer, `problem` says why then.
    """

    shard: int
    state: str
    restarts: int
    life: ShardLife | None
    status: ShardStatus | None
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class ClusterReport:
    """A run as it is now. `pending`: what missing shards wait for, if any; `progress`: as published."""

    record: board.RunRecord
    shards: tuple[ShardReport, ...]
    pending: str | None
    progress: Mapping[str, Any]


class RayCluster:
    """The shards of a run. `record`: as it was launched; `shards`: how to reach them.

    Launching and attaching need a connection to Ray (`connect`). Closing the driver leaves the shards
    running: they are detached, and end with `stop`.
    """

    def __init__(self, record: board.RunRecord) -> None:
        self.record = record
        self.shards = RayShards(record.settings, record.shards)

    @classmethod
    def launch(
        cls, spec: ClusterSpec, settings: ClusterSettings, *, pending: Callable[[str], None] | None = None
    ) -> RayCluster:
        """Start the shards of `spec`, each on a node of its own, and return when all are up.

        A STRICT_SPREAD placement group reserves all places at once, so that an autoscaler sees the whole of
        what is asked for; while there are too few nodes, `pending` (by default the log) is given a line
        "PENDING: waiting for capacity ..." every `report_every` seconds. Then a probe looks from every node
        at the checkpoint directory and at the versions, and the actors take the places over: bound to a
        group, a shard could not leave a node that is drained before that is gone. From then on the resource,
        of which a node has one unit, keeps shards apart. Ray begins a shard anew on the node that it was
        launched on or, where that can't be, on a spare one.

        Raises TimeoutError after `start_timeout`, CprError for what the probe found, for a second run of that
        name and for what kept a shard from beginning: nothing of it is left running then.
        """
        record = board.RunRecord(
            settings=settings,
            shards=spec.shards,
            store=str(spec.store),
            rows=sum(t.num_embeddings for t in spec.tables),
        )
        board.publish_run(record)
        deadline = None if settings.start_timeout is None else time.monotonic() + settings.start_timeout
        made = cls(record)
        try:
            group = made._reserve(deadline, pending or made._log_pending)
            _probe(spec, group)
            nodes = _nodes_of(group)
            _release(group)
            made._start(spec, nodes)
            for recovery in made._await(deadline):
                log("shard_up", run=settings.run, shard=recovery.shard, incarnation=recovery.incarnation)
        except BaseException:
            made.stop(commit=False)
            raise
        return made

    @classmethod
    def attach(cls, run: str) -> RayCluster:
        """Return a run that any process of this Ray cluster launched; raises CprError for an unknown one."""
        return cls(board.read_run(run))

    @property
    def settings(self) -> ClusterSettings:
        """Of the run."""
        return self.record.settings

    def _log_pending(self, line: str) -> None:
        log("pending", run=self.settings.run, line=line)

    def _reserve(self, deadline: float | None, pending: Callable[[str], None]) -> PlacementGroup:
        settings = self.settings
        bundle: dict[str, float] = {
            settings.resource: 1.0,
            **({"CPU": settings.cpus} if settings.cpus else {}),
        }
        group: PlacementGroup = placement_group(
            [dict(bundle) for _ in range(self.record.shards)],
            strategy="STRICT_SPREAD",
            name=settings.namespace,
        )
        wait = min(1.0, settings.report_every)
        while not group.wait(wait):
            line = pending_line(capacity(settings.resource), missing=self.record.shards)
            pending(line)
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {settings.run!r}: {line} after {settings.start_timeout} s")
            wait = settings.report_every
        return group

    def _start(self, spec: ClusterSpec, nodes: Sequence[str]) -> None:
        settings = self.settings
        actors = actor_class(settings)
        for shard, node in enumerate(nodes):
            actors.options(
                name=settings.actor_name(shard),
                namespace=settings.namespace,
                lifetime="detached",
                max_restarts=-1,
                max_task_retries=0,
                num_cpus=settings.cpus,
                resources={settings.resource: 1.0},
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
            ).remote(spec, shard, settings)

    def _await(self, deadline: float | None) -> list[ShardRecovery]:
        found = []
        for shard in range(self.record.shards):
            left = 10.0 * 365 * 86400 if deadline is None else max(1.0, deadline - time.monotonic())
            handle = self.shards.reconnect(shard, left, after=0)
            found.append(handle.call("status").result(self.settings.call_timeout).recovery)
        return found

    def report(self, timeout: float = 5.0) -> ClusterReport:
        """Return all that is known of the run, asking every shard at once for `timeout` seconds at most."""
        asked = {}
        for shard in range(self.record.shards):
            try:
                actor = self.shards.actor(shard)
                asked[shard] = (actor, actor.life.remote(), actor.watching.remote(None, "status"))
            except ShardLost:
                continue
        deadline = time.monotonic() + timeout
        reports = tuple(
            self._report(shard, asked.get(shard), deadline) for shard in range(self.record.shards)
        )
        missing = sum(report.state not in ("ALIVE", "unknown") for report in reports)
        line = pending_line(capacity(self.settings.resource), missing=missing) if missing else None
        return ClusterReport(
            record=self.record, shards=reports, pending=line, progress=board.read_progress(self.settings.run)
        )

    def _report(self, shard: int, asked: tuple[Any, Any, Any] | None, deadline: float) -> ShardReport:
        if asked is None:
            return ShardReport(
                shard=shard, state="DEAD", restarts=0, life=None, status=None, problem="it has no actor"
            )
        actor, asked_life, asked_status = asked
        life, status, problem = None, None, None
        try:
            life = answer(asked_life, deadline - time.monotonic(), shard)
            status = answer(asked_status, deadline - time.monotonic(), shard)
        except (CprError, TimeoutError, OSError, ValueError) as error:
            problem = str(error)
        state = internals.actor_state(actor._actor_id.hex())
        return ShardReport(
            shard=shard,
            state=state.get("State", "unknown"),
            restarts=state.get("NumRestarts", 0),
            life=life,
            status=status,
            problem=problem,
        )

    def stop(self, *, commit: bool = True, timeout: float | None = None) -> None:
        """End the run's shards and give their places back; a second call does nothing.

        `commit`: what is not saved is committed first, as far as each shard manages within `timeout` seconds
        (by default `grace` and 10 s). Shared memory of shards that answer is freed. Other runs, nodes and Ray
        itself go on.
        """
        settings = self.settings
        wait = (settings.grace * commit + _STOP_SECONDS) if timeout is None else timeout
        actors = []
        for shard in range(self.record.shards):
            try:
                actor = ray.get_actor(settings.actor_name(shard), namespace=settings.namespace)
            except ValueError:
                continue
            actors.append((shard, actor))
        deadline = time.monotonic() + wait
        asked = [(shard, actor.finish.remote(commit)) for shard, actor in actors]
        for shard, reference in asked:
            try:
                answer(reference, deadline - time.monotonic(), shard)
            except (CprError, TimeoutError, OSError) as error:
                log("shard_not_finished", run=settings.run, shard=shard, error=str(error))
        for _, actor in actors:
            ray.kill(actor, no_restart=True)
        _release_named(settings.namespace)
        board.remove_run(settings.run)
        log("run_stopped", run=settings.run, shards=len(actors))


def _probe(spec: ClusterSpec, group: PlacementGroup) -> None:
    """Look from the node of every shard; raises CprError, TimeoutError, OSError."""
    file = probe.ProbeFile(spec)
    look: Any = ray.remote(num_cpus=0, max_retries=0)(probe.look)
    try:
        asked = [
            look.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, shard)).remote(
                spec, shard, file.nonce
            )
            for shard in range(spec.shards)
        ]
        deadline = time.monotonic() + _PROBE_SECONDS
        found = [answer(each, deadline - time.monotonic(), shard) for shard, each in enumerate(asked)]
        probe.check(found, file, spec.store)
    finally:
        file.close(spec.shards)


def _nodes_of(group: PlacementGroup) -> list[str]:
    """Return the node of each bundle, by its id in hex."""
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return [nodes[bundle] for bundle in range(group.bundle_count)]


def _release(group: PlacementGroup) -> None:
    """Give the reserved places back; they are free for actors when this returns. Raises TimeoutError."""
    remove_placement_group(group)
    deadline = time.monotonic() + _RELEASE_SECONDS
    while placement_group_table(group)["state"] != "REMOVED":
        if time.monotonic() > deadline:
            raise TimeoutError(f"the reservation of places was not released after {_RELEASE_SECONDS} s")
        time.sleep(0.01)


def _release_named(name: str) -> None:
    """Give up a reservation that a launch has left, if there is one."""
    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(name))
