"""Ray clusters for tests: in a network namespace of their own, several nodes on one machine."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import ray

from cpr_native.ray import ClusterSettings, LocalNode, LocalNodes, RayCluster
from cpr_native.ray.local import process_tree
from cpr_native.ray.network import loopback_only

T = TypeVar("T")

SECONDS = 60.0  # for anything that is waited for


def eventually(look: Callable[[], T | None], what: str, timeout: float = SECONDS) -> T:
    """Return what `look` returns once it is not None or False; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.02)


@contextmanager
def network_namespace() -> Iterator[None]:
    """Move this thread, and what it starts, to a network where only loopback is up, or skip the test."""
    with ExitStack() as stack:
        try:
            stack.enter_context(loopback_only())
        except PermissionError as error:
            pytest.skip(f"needs root: {error}")
        yield


class Lab:
    """A Ray cluster of a head and `places` nodes with a place for one shard each, in `folder`."""

    def __init__(self, folder: Path, places: int, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.places = places
        (folder / "r").mkdir()
        self.nodes = LocalNodes(folder / "r", environment=environment)
        self._runs: list[RayCluster] = []
        self._number = 0

    def start(self) -> None:
        self.nodes.start_head(cpus=1)
        for _ in range(self.places):
            self.nodes.add()
        self.nodes.connect()
        self.nodes.wait()

    def heal(self, places: int | None = None) -> None:
        """End what tests have left, and have as many living nodes again as at the start."""
        for run in self._runs:
            run.stop(commit=False)
        self._runs.clear()
        for node in self.nodes.nodes[1:]:
            node.thaw()
        dead = {node["NodeManagerAddress"] for node in ray.nodes() if not node["Alive"]}
        for node in self.nodes.nodes[1:]:
            if node.running and node.address in dead:
                node.kill()
        living = [node for node in self.nodes.nodes[1:] if node.running]
        wanted = self.places if places is None else places
        for node in living[wanted:]:
            node.kill()
        for _ in range(wanted - len(living)):
            self.nodes.add()
        self.nodes.wait()
        eventually(lambda: self.alive() == wanted + 1, f"{wanted + 1} living nodes")

    def alive(self) -> int:
        return sum(node["Alive"] for node in ray.nodes())

    def store(self) -> Path:
        """Return a path for one more checkpoint directory."""
        self._number += 1
        return self.folder / f"store-{self._number}"

    def launch(self, spec: Any, **options: Any) -> RayCluster:
        self._number += 1
        defaults: dict[str, Any] = {
            "call_timeout": SECONDS,
            "start_timeout": 2 * SECONDS,
            "report_every": 1.0,
        }
        settings = ClusterSettings(run=f"run-{self._number}", **{**defaults, **options})
        run = RayCluster.launch(spec, settings)
        self._runs.append(run)
        return run

    def node_of(self, pid: int) -> LocalNode:
        """Return the node on which a process runs."""
        return next(node for node in self.nodes.nodes if node.running and pid in process_tree(node.pid))

    def logs(self) -> str:
        """Return the structured lines of all shards' processes so far."""
        paths = (self.folder / "r").glob("n*/session_*/logs/worker-*.err")
        return "".join(path.read_text(errors="replace") for path in paths)

    def close(self) -> None:
        self.nodes.close()
        for node in self.nodes.nodes:
            assert not node.running


@contextmanager
def lab(places: int, environment: Mapping[str, str] | None = None, *, start: bool = True) -> Iterator[Lab]:
    """Run a Ray cluster with a home folder and a folder of its own; `start`: begin with its nodes."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    before = dict(os.environ)
    with network_namespace():
        folder = Path(tempfile.mkdtemp(prefix="cpr-", dir="/tmp"))
        os.environ["HOME"] = str(folder)
        made = Lab(folder, places, environment or {})
        try:
            if start:
                made.start()
            yield made
        finally:
            made.close()
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)
            gc.collect()


def pid_is_gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
