"""`LocalNodes`: several Ray nodes on one machine, for trials, the demo and tests."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from cpr_native.errors import CprError
from cpr_native.ray import internals
from cpr_native.ray.settings import HealthProfile
from cpr_native.ray.start import connect

_PR_SET_PDEATHSIG = 1
_PARENT = "CPR_LOCAL_NODES_PARENT"
_OBJECT_STORE = 96 * 2**20
_LONGEST_FOLDER = 40  # Ray's socket paths below it must stay under 107 bytes


def process_tree(pid: int) -> list[int]:
    """Return `pid` and all its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, ()))
    return found


def prepare_node(parameters: Any, head: bool) -> None:
    """Give a `ray start` of `LocalNodes` no port for the Ray client, and the same end as its parent.

    Ray's own processes end with it in turn.
    """
    parameters.ray_client_server_port = None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[_PARENT]):
        os.kill(os.getpid(), signal.SIGKILL)


def _signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class LocalNode:
    """One node: the `ray start` process and what it has started. `address`: its IP address."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self._process = process
        self.address = address
        self.log = log

    @property
    def pid(self) -> int:
        """Of the `ray start` process, the parent of all others."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether that process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End all its processes at once, as the loss of the machine does."""
        tree = process_tree(self.pid)
        _signal_all(tree, signal.SIGSTOP)
        _signal_all(process_tree(self.pid), signal.SIGKILL)
        self._process.wait(10)

    def freeze(self) -> None:
        """Stop all its processes where they are; `thaw` or `kill` ends that."""
        _signal_all(process_tree(self.pid), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let frozen processes go on."""
        _signal_all(process_tree(self.pid), signal.SIGCONT)

    def terminate(self) -> None:
        """Ask for its end with SIGTERM, as a scheduler does: Ray drains the node first. Does not wait."""
        self._process.send_signal(signal.SIGTERM)


class LocalNodes:
    """Ray nodes with a loopback address each (127.0.0.2 and on), all ended by their ids at `close`.

    They listen on all interfaces of the machine, as Ray does: use it in a network namespace, or with the
    token that is required unless `token` is False; `connect` sends it. `folder`: for logs, sockets and the
    token, of a short path. `health`: of the nodes; `environment`: more variables for them. To be used by the
    main thread, which they don't outlive.
    """

    def __init__(
        self,
        folder: Path,
        *,
        health: HealthProfile | None = None,
        token: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        if len(str(self.folder)) > _LONGEST_FOLDER:
            raise ValueError(f"{self.folder}: expected a path of at most {_LONGEST_FOLDER} characters")
        self.environment = {
            **(health or HealthProfile()).environment(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.folder),
            _PARENT: str(os.getpid()),
            "RAY_START_HOOK": f"{__name__}.prepare_node",
            **self._access(token),
            **(environment or {}),
        }
        self.nodes: list[LocalNode] = []
        self.address = ""
        self._began = 0
        self._connected = False

    def _access(self, token: bool) -> dict[str, str]:
        if not token:
            return {"RAY_AUTH_MODE": "disabled"}
        path = self.folder / "token"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(os.urandom(32).hex())
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}

    def start_head(self, *, cpus: int = 1, prefix: Sequence[str] = (), ip: str = "127.0.0.2") -> LocalNode:
        """Start the head, which holds the control store and offers no place for shards. Does not wait.

        After the loss of a head: the next one at the same address. It goes on with the old one's control
        store where that is on disk (`RAY_gcs_storage`, `RAY_gcs_storage_path` in `environment`).
        """
        if self.nodes:
            ip, port = self.address.split(":")
        else:
            with socket.socket() as free:
                free.bind((ip if not prefix else "127.0.0.1", 0))
                port = str(free.getsockname()[1])
            self.address = f"{ip}:{port}"
        options = ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
        head = self._start(options, ip, cpus, {}, prefix)
        self.nodes.remove(head)
        self.nodes[:1] = [head]
        return head

    def add(
        self,
        *,
        resources: Mapping[str, float] | None = None,
        cpus: int = 1,
        prefix: Sequence[str] = (),
        ip: str | None = None,
    ) -> LocalNode:
        """Start one more node, with a place for one shard by default. Does not wait.

        `prefix`: a command that runs the node, such as `nsenter`; `ip`: its address, the next of
        127.0.0.0/8 by default.
        """
        self.wait_for_head()
        offered = {"cpr_shard": 1} if resources is None else dict(resources)
        return self._start(
            [f"--address={self.address}"], ip or f"127.0.0.{self._began + 2}", cpus, offered, prefix
        )

    def wait_for_head(self, timeout: float = 60.0) -> None:
        """Wait until the head's control store listens; a node that asks earlier tries again only 5 s later.

        Raises CprError, with what the head wrote, when it ended; TimeoutError.
        """
        if not self.nodes:
            raise ValueError("start_head comes first")
        ip, port = self.address.split(":")
        deadline = time.monotonic() + timeout
        while True:
            with socket.socket() as asking:
                asking.settimeout(1.0)
                if asking.connect_ex((ip, int(port))) == 0:
                    return
            if not self.nodes[0].running:
                raise CprError(f"the head ended: {self.nodes[0].log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the head at {self.address} does not listen after {timeout} s")
            time.sleep(0.05)

    def _start(
        self, options: Sequence[str], ip: str, cpus: int, resources: Mapping[str, Any], prefix: Sequence[str]
    ) -> LocalNode:
        self._began += 1
        log = self.folder / f"node-{self._began}.log"
        command = [
            *prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
            f"--node-ip-address={ip}", f"--num-cpus={cpus}", f"--resources={json.dumps(dict(resources))}",
            f"--object-store-memory={_OBJECT_STORE}", "--include-log-monitor=false",
            "--dashboard-agent-listen-port=0", f"--temp-dir={self.folder / f'n{self._began}'}", *options,
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        node = LocalNode(process, ip, log)
        self.nodes.append(node)
        return node

    def connect(self, timeout: float = 60.0, node: LocalNode | None = None) -> None:
        """Connect this process to the cluster as one on `node`, by default the head's, whose loss it shares.

        Waits up to `timeout` seconds until the head listens. Raises CprError, TimeoutError.
        """
        self.wait_for_head(timeout)
        os.environ.update(self.environment)
        connect(self.address, ip=(node or self.nodes[0]).address)
        self._connected = True

    def wait(self, timeout: float = 120.0) -> None:
        """Wait until every node that runs has joined; needs `connect`. Raises TimeoutError, naming others."""
        deadline = time.monotonic() + timeout
        while True:
            joined = {node["NodeManagerAddress"] for node in internals.nodes() if node["Alive"]}
            missing = [node.address for node in self.nodes if node.running and node.address not in joined]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"nodes {missing} have not joined after {timeout} s")
            time.sleep(0.1)

    def close(self) -> None:
        """End the connection of `connect` and every process that was started here."""
        if self._connected:
            self._connected = False
            ray.shutdown()
        for node in self.nodes:
            if node.running:
                node.kill()

    def __enter__(self) -> LocalNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
