"""What carries calls to shards in the benchmarks: processes of this machine over pipes, or Ray actors."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from plain_pattern import Answer, PlainShard, Send

from cpr_native.cluster.handle import ShardDirectory
from cpr_native.cluster.processes import ProcessDirectory
from cpr_native.cluster.spec import ClusterSpec

CARRIERS = ("processes", "ray")
TIMEOUT = 120.0
_OBJECT_STORE = 2 << 30  # bytes


@dataclass(frozen=True)
class Carrier:
    """Starts shards: `shards` those of a spec, `plain` PlainShards made of some arguments."""

    name: str
    shards: Callable[[ClusterSpec], Any]
    plain: Callable[[int, tuple[Any, ...]], Any]


@contextmanager
def carrier_of(name: str, timed: bool) -> Iterator[Carrier]:
    """Begin and end what the shards need; skips Ray where it isn't installed or nothing is timed."""
    if name == "processes":
        yield Carrier(name, _processes, _plain_processes)
        return
    if not timed:
        pytest.skip("over Ray only when it is timed")
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    pytest.importorskip("cpr_native.ray")
    with _ray():
        yield Carrier(name, _actors, _plain_actors)


@contextmanager
def _processes(spec: ClusterSpec) -> Iterator[ShardDirectory]:
    directory = ProcessDirectory(spec)
    try:
        yield directory
    finally:
        directory.close()


class _Reply:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def result(self, timeout: float) -> Any:
        if not self._connection.poll(timeout):
            raise TimeoutError
        return self._connection.recv()


def _serve(arguments: tuple[Any, ...], calls: Connection) -> None:
    shard = PlainShard(*arguments)
    while (call := calls.recv()) is not None:
        method, args = call
        calls.send(getattr(shard, method)(*args))


@contextmanager
def _plain_processes(shards: int, arguments: tuple[Any, ...]) -> Iterator[Send]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(shards)]
    started = [context.Process(target=_serve, args=(arguments, theirs), daemon=True) for _, theirs in pipes]
    for process in started:
        process.start()

    def send(shard: int, method: str, args: tuple[Any, ...]) -> Answer:
        pipes[shard][0].send((method, args))
        return _Reply(pipes[shard][0])

    try:
        yield send
    finally:
        for (mine, _), process in zip(pipes, started, strict=True):
            mine.send(None)
            process.join(10)
            if process.is_alive():
                process.kill()


@contextmanager
def _ray() -> Iterator[None]:
    """One Ray node of this process's own, on an address of the loopback interface."""
    import ray

    from cpr_native.ray import HealthProfile

    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(HealthProfile().environment(), HOME=home, RAY_USAGE_STATS_ENABLED="0")
        # Actors import what they are made of.
        path = [str(Path(__file__).parent), *filter(None, before.get("PYTHONPATH", "").split(os.pathsep))]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=16,
            object_store_memory=_OBJECT_STORE,
            log_to_driver=False,
            namespace="cpr-bench",
            _node_ip_address="127.0.0.2",
        )
        begun = ray._private.worker._global_node.all_processes.values()
        processes = [each.process for kind in begun for each in kind]
        try:
            yield
        finally:
            ray.shutdown()
            for process in processes:  # Ray ends them and doesn't look back
                process.wait(30)
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def _actors(spec: ClusterSpec) -> Iterator[ShardDirectory]:
    """The actors of `cpr_native.ray`, all on the one node."""
    import ray

    from cpr_native.ray import ClusterSettings, RayShards
    from cpr_native.ray.actor import actor_class

    settings = ClusterSettings(run="bench", call_timeout=TIMEOUT)
    actors = [
        actor_class(settings).options(name=settings.actor_name(shard)).remote(spec, shard, settings)
        for shard in range(spec.shards)
    ]
    try:
        directory = RayShards(settings, spec.shards)
        for shard in range(spec.shards):
            directory.handle(shard)
        yield directory
    finally:
        for actor in actors:
            ray.kill(actor)


class _Reference:
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self, timeout: float) -> Any:
        import ray

        return ray.get(self._reference, timeout=timeout)


@contextmanager
def _plain_actors(shards: int, arguments: tuple[Any, ...]) -> Iterator[Send]:
    import ray

    actors = [ray.remote(PlainShard).remote(*arguments) for _ in range(shards)]

    def send(shard: int, method: str, args: tuple[Any, ...]) -> Answer:
        return _Reference(getattr(actors[shard], method).remote(*args))

    try:
        yield send
    finally:
        for actor in actors:
            ray.kill(actor)
