"""How soon training goes on after a failure on Ray: `python bench/cluster_failures.py`, as root.

Scenarios, each repeated, in one Ray cluster of this machine (a node for each shard, a spare one, a head):

- kill:        kill -9 of a shard's process
- kill_shared: the same with the tables in shared memory
- node:        all processes of a node killed, its shard goes to the spare one
- frozen:      all processes of a node stopped

A trainer makes steps (lookup and update of both shards) all the time. `seconds`: from the failure to the end
of the first step after it. `noticed`: until a call fails; `restore`: of it, what the next life took to have
its rows (read from the checkpoint, page cache warm); `without_restore`: the rest. Every run checks the rows:
those of the shard that failed are of its last save. Medians go to docs/results/cluster.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from cpr_native.cluster.client import ShardClients, ShardLoss
from cpr_native.cluster.messages import CutRequest, RowIds
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.config import EmbeddingConfig, Trackers
from cpr_native.optim import RowWiseAdagrad
from cpr_native.ray import ClusterSettings, LocalNode, LocalNodes, RayCluster, RayHandle
from cpr_native.ray.local import process_tree
from cpr_native.ray.network import loopback_only
from cpr_native.store import Placement

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "cluster.json"
SCENARIOS = ("kill", "kill_shared", "node", "frozen")
SHARDS = 2
DIM = 32
BATCH = 2048  # unique rows of each shard and step
WAIT = 120.0


class Training:
    """A trainer of one table over two shards of `rows` rows each."""

    def __init__(self, folder: Path, rows: int, shared: Path | None) -> None:
        table = EmbeddingConfig(
            name="t", num_embeddings=SHARDS * rows, embedding_dim=DIM, feature_names=["t"]
        )
        self.rows = rows
        self.spec = ClusterSpec(
            tables=(table,),
            trackers=(Trackers(),),
            optimizer=RowWiseAdagrad(lr=0.1),
            placement=Placement(shards=SHARDS, blocks={"t": rows}),
            store=str(folder / uuid.uuid4().hex),
            run_id=uuid.uuid4().hex,
            shared=None if shared is None else str(shared),
            seed=0,
            threads=1,
        )
        self.cluster = RayCluster.launch(self.spec, ClusterSettings(run=f"bench-{uuid.uuid4().hex[:8]}"))
        self.losses: list[ShardLoss] = []
        self.noticed = 0.0
        self.clients = ShardClients(self.cluster.shards, on_lost=self._lost)
        self._rng = np.random.default_rng(0)
        self._cuts = 0

    def _lost(self, loss: ShardLoss) -> None:
        self.losses.append(loss)
        self.noticed = time.monotonic() - loss.seconds

    def handle(self, shard: int) -> RayHandle:
        found = self.cluster.shards.handle(shard)
        assert isinstance(found, RayHandle)
        return found

    def step(self) -> None:
        rows = [
            RowIds(
                np.array([BATCH], np.int64),
                np.unique(self._rng.integers(0, self.rows, 2 * BATCH))[:BATCH].astype(np.int32),
            )
            for _ in range(SHARDS)
        ]
        found = self.clients.lookup(rows)
        gradients = [found.result(shard) * np.float32(0.01) for shard in range(SHARDS)]
        self.clients.update(rows, gradients, [np.ones(BATCH, np.uint32)] * SHARDS)

    def save(self) -> None:
        self.clients.settle(WAIT)
        self._cuts += 1
        for shard in range(SHARDS):
            handle = self.handle(shard)
            request = CutRequest(
                number=self._cuts,
                generation=1,
                incarnation=handle.incarnation,
                step=self.clients.step - 1,
                kind="delta",
            )
            handle.call("cut", request).result(WAIT)
        for shard in range(SHARDS):
            self.handle(shard).call("committed", self._cuts, WAIT).result(2 * WAIT)

    def weights(self, shard: int) -> Any:
        return self.handle(shard).call("rows", "t").result(WAIT)["weight"]


def measure(training: Training, fail: Callable[[], None], *, keeps: bool) -> dict[str, float]:
    """Save, train on, fail, train on; returns what it took. `keeps`: nothing may be lost."""
    for _ in range(10):
        training.step()
    training.save()
    saved = training.weights(0)
    for _ in range(10):
        training.step()
    training.clients.settle(WAIT)
    before = training.weights(0)
    pid = training.handle(1).life.pid
    training.losses.clear()
    began = time.monotonic()
    fail()
    while not training.losses:
        training.step()
    seconds = time.monotonic() - began
    (loss,) = training.losses
    training.clients.settle(WAIT)
    status = training.handle(0).call("status").result(WAIT)
    assert training.handle(1).life.pid == pid
    changed = np.flatnonzero((training.weights(0) != (before if keeps else saved)).any(axis=1))
    assert loss.lost_steps == 0 if keeps else loss.lost_steps > 0
    assert len(changed) <= 10 * BATCH, "more rows differ than were updated since the failure"
    restore = status.recovery.seconds
    return {
        "seconds": seconds,
        "noticed": training.noticed - began,
        "restore": restore,
        "without_restore": seconds - restore,
    }


def node_of(nodes: LocalNodes, training: Training) -> LocalNode:
    pid = training.handle(0).life.pid
    return next(node for node in nodes.nodes if node.running and pid in process_tree(node.pid))


def heal(nodes: LocalNodes) -> None:
    """Have a spare node again."""
    for node in nodes.nodes[1:]:
        if node.running and not any(
            each["Alive"] and each["NodeManagerAddress"] == node.address for each in ray.nodes()
        ):
            node.kill()
    if sum(node.running for node in nodes.nodes) < SHARDS + 2:
        nodes.add()
    nodes.wait()
    time.sleep(5.0)  # what starts with a node has then started


def scenarios(
    nodes: LocalNodes, folder: Path, rows: int, repeats: int, names: Sequence[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        loads = [os.getloadavg()[0]]
        shared = folder / "shm" if name == "kill_shared" else None
        training = Training(folder, rows, shared)
        runs = []
        for _ in range(repeats):
            heal(nodes)
            node = node_of(nodes, training)
            fail: dict[str, Callable[[], None]] = {
                "kill": partial(os.kill, training.handle(0).life.pid, signal.SIGKILL),
                "node": node.kill,
                "frozen": node.freeze,
            }
            runs.append(measure(training, fail[name.partition("_")[0]], keeps=shared is not None))
            print(name, {key: round(value, 3) for key, value in runs[-1].items()}, flush=True)
        training.cluster.stop(commit=False)
        heal(nodes)
        loads.append(os.getloadavg()[0])
        found[name] = {"load": [round(load, 1) for load in loads]}
        found[name] |= {
            key: {
                "median": round(statistics.median(run[key] for run in runs), 3),
                "all": [round(run[key], 3) for run in runs],
            }
            for key in runs[0]
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shard-bytes", type=int, default=256 * 2**20)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS, metavar="SCENARIO")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = options.shard_bytes // (4 * DIM)
    folder = Path(tempfile.mkdtemp(prefix="cpr-", dir="/tmp"))
    try:
        with loopback_only(), LocalNodes(folder) as nodes:
            nodes.start_head()
            for _ in range(SHARDS + 1):
                nodes.add()
            nodes.connect()
            nodes.wait()
            found = scenarios(nodes, folder, rows, options.repeats, options.only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["failures"] = results.get("failures", {}) | {
        "machine": {
            "cpus": len(os.sched_getaffinity(0)),
            "processor": platform.processor() or platform.machine(),
            "ray": ray.__version__,
        },
        "shards": SHARDS,
        "shard_bytes": options.shard_bytes,
        "repeats": options.repeats,
        **found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
