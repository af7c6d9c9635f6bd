"""Train the Criteo DLRM with its tables in shards on Ray, lose a process and a node, and say what happened.

    python examples/ray_dlrm.py                          # Ray nodes on this machine, loopback only
    python examples/ray_dlrm.py --data train.txt         # a real Criteo file instead of generated samples
    python examples/ray_dlrm.py --address auto           # a Ray cluster that runs (RAY_AUTH_MODE=token)

On this machine it makes a head, a node for each shard and a spare one: as root in a network of their own
with loopback only; else Ray listens on all interfaces, and a token keeps others out. Who has it can run code.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from cpr_native import EmbeddingBagConfig, Trackers
from cpr_native.cluster.client import ShardClients, ShardLoss
from cpr_native.cluster.coordinator import Coordinator, GlobalSave
from cpr_native.cluster.spec import ClusterSpec
from cpr_native.data import ClickBatch, CriteoReader, SyntheticClicks, auc, kaggle_table_sizes
from cpr_native.models import DEMO, DLRM
from cpr_native.ray import (
    ClusterSettings,
    LocalNodes,
    RayCluster,
    RayHandle,
    TrainingMetrics,
    connect,
    publish_progress,
)
from cpr_native.ray.local import process_tree
from cpr_native.ray.network import loopback_only
from cpr_native.sharded import ShardedEmbeddingBagCollection
from cpr_native.store import Placement

OUT = Console(highlight=False)


@dataclass
class Failure:
    """One injected failure: what, when, and what the trainer was told of it."""

    what: str
    shard: int
    step: int
    at: float
    pids: list[int]
    went_on: float | None = None
    loss: ShardLoss | None = None


@dataclass
class Job:
    """A training job over the shards of `cluster`; `nodes`: those of this machine, None elsewhere."""

    options: argparse.Namespace
    cluster: RayCluster
    spec: ClusterSpec
    nodes: LocalNodes | None
    failures: list[Failure] = field(default_factory=list)
    saves: list[GlobalSave] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.clients = ShardClients(self.cluster.shards, on_lost=self._lost)
        embeddings = ShardedEmbeddingBagCollection(self.spec, self.clients)
        self.model = DLRM(DEMO.model, embeddings, features=len(self.spec.tables))
        self.dense = DEMO.dense_optimizer(self.model.dense_parameters())
        self.metrics = TrainingMetrics(self.cluster.settings.run)
        self.writer = ThreadPoolExecutor(1)
        self.saving: Future[GlobalSave] | None = None

    def say(self, step: int, text: str) -> None:
        OUT.print(f"{time.monotonic() - self.began:7.2f} s  step {step:4d}  {text}", soft_wrap=True)

    def pids(self) -> list[int]:
        handles = [self.cluster.shards.handle(shard) for shard in range(self.spec.shards)]
        return [handle.life.pid for handle in handles if isinstance(handle, RayHandle)]

    def _lost(self, loss: ShardLoss) -> None:
        failure = self.failures[-1] if self.failures else None
        text = (
            f"shard {loss.shard}: life {loss.incarnation} goes on; {loss.lost_steps} steps "
            f"({loss.lost_lookups:,} lookups) lost, {loss.resent} updates sent again"
        )
        self.say(self.clients.step, text)
        if failure is not None and failure.loss is None:
            failure.loss = loss
            self.metrics.recovered(pls=self.pls(), lost_lookups=loss.lost_lookups, seconds=loss.seconds)

    def lost_lookups(self) -> int:
        return sum(failure.loss.lost_lookups for failure in self.failures if failure.loss is not None)

    def pls(self) -> float:
        return self.lost_lookups() / max(1, int(self.clients.lookups.sum()))

    def train(self, batches: Iterator[ClickBatch]) -> None:
        options = self.options
        plan = {options.steps // 3: self.kill_process, 2 * options.steps // 3: self.kill_node}
        with Coordinator(
            self.spec.open_store(), self.spec.schema, self.spec.placement, run_id=self.spec.run_id
        ) as points:
            for step in range(1, options.steps + 1):
                self.step(next(batches))
                for failure in self.failures:
                    if failure.loss is not None and failure.went_on is None:
                        failure.went_on = time.monotonic() - failure.at
                if step % options.save_every == 0 or step == options.steps:
                    self.save(points, step)
                if step in plan and self.nodes is not None:
                    plan[step](step)
            self.settle()

    def step(self, batch: ClickBatch) -> None:
        logits = self.model(batch.dense, batch.ids, batch.offsets)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        self.dense.zero_grad()
        loss.backward()  # sends the tables' gradients to the shards
        self.dense.step()

    def save(self, points: Coordinator, step: int) -> None:
        """Cut all shards after this step; the rest goes on beside training."""
        self.settle()
        self.clients.settle(60.0)
        handles = [self.clients.handle(shard) for shard in range(self.spec.shards)]
        cut = points.begin(handles, generation=1, step=step, kind="delta", samples=step * self.options.batch)
        state = {f"model.{name}": value.numpy().copy() for name, value in self.model.state_dict().items()}
        self.saving = self.writer.submit(points.finish, cut, state)
        publish_progress(
            self.cluster.settings.run,
            {
                "step": step,
                "pls": self.pls(),
                "recoveries": len(self.failures),
                "lost_lookups": self.lost_lookups(),
            },
        )

    def settle(self) -> None:
        """Wait for the save that is being written."""
        if self.saving is not None:
            done = self.saving.result(120.0)
            self.saves.append(done)
            self.saving = None
            self.say(
                done.step, f"saved: {done.kind}, {done.bytes_written / 2**20:.1f} MB in {done.seconds:.2f} s"
            )

    def kill_process(self, step: int) -> None:
        self._inject("kill -9 of the process", 0, step)
        os.kill(self.failures[-1].pids[0], signal.SIGKILL)

    def kill_node(self, step: int) -> None:
        assert self.nodes is not None
        shard = self.spec.shards - 1
        self._inject("loss of the node", shard, step)
        pid = self.failures[-1].pids[shard]
        next(node for node in self.nodes.nodes if node.running and pid in process_tree(node.pid)).kill()

    def _inject(self, what: str, shard: int, step: int) -> None:
        self.settle()
        self.say(step, f"[bold]{what} of shard {shard}[/bold]")
        self.failures.append(Failure(what, shard, step, time.monotonic(), self.pids()))

    def quality(self, batches: Iterator[ClickBatch]) -> float:
        scores, labels = [], []
        self.model.eval()
        with torch.no_grad():
            for batch in batches:
                scores.append(self.model(batch.dense, batch.ids, batch.offsets))
                labels.append(batch.labels)
        return auc(torch.cat(labels).numpy(), torch.cat(scores).numpy())


def samples(options: argparse.Namespace, sizes: tuple[int, ...], *, held_out: bool) -> Iterator[ClickBatch]:
    if options.data is not None:
        return iter(CriteoReader(options.data, table_sizes=sizes, batch_size=options.batch))
    train = options.steps * options.batch
    begin, end = (train, train + 20 * options.batch) if held_out else (0, train)
    return iter(SyntheticClicks(begin=begin, end=end, batch_size=options.batch, table_sizes=sizes))


def make_spec(options: argparse.Namespace, sizes: tuple[int, ...], store: str) -> ClusterSpec:
    tables = tuple(
        EmbeddingBagConfig(
            name=f"C{number}",
            num_embeddings=rows,
            embedding_dim=DEMO.model.embedding_dim,
            feature_names=(f"C{number}",),
        )
        for number, rows in enumerate(sizes, start=1)
    )
    blocks = {table.name: -(-table.num_embeddings // options.shards) for table in tables}
    return ClusterSpec(
        tables=tables,
        trackers=(Trackers(),) * len(tables),
        optimizer=DEMO.table_optimizer,
        placement=Placement(shards=options.shards, blocks=blocks),
        store=store,
        run_id=uuid.uuid4().hex,
        seed=0,
        threads=1,
    )


def report(job: Job, quality: float | None) -> None:
    """Print what the failures did."""
    table = Table(title="\nWhat the failures did", title_justify="left", box=None)
    for name in (
        "failure",
        "shard",
        "after step",
        "training on after",
        "lost steps",
        "lost lookups",
        "other shards",
    ):
        table.add_column(name, justify="left" if name == "failure" else "right")
    now = job.pids()
    for failure in job.failures:
        loss = failure.loss
        same = sum(
            now[s] == failure.pids[s]
            for s in range(job.spec.shards)
            if s not in {f.shard for f in job.failures}
        )
        table.add_row(
            failure.what,
            str(failure.shard),
            str(failure.step),
            "-" if failure.went_on is None else f"{failure.went_on:.2f} s",
            "-" if loss is None else str(loss.lost_steps),
            "-" if loss is None else f"{loss.lost_lookups:,}",
            f"{same} kept their process",
        )
    OUT.print(table)
    OUT.print(f"portion of lost lookups: {job.pls():.4%}; saves: {len(job.saves)}")
    if quality is not None:
        OUT.print(f"AUC on held-out samples: {quality:.4f}")


def run(options: argparse.Namespace, stack: ExitStack) -> Job:
    """Start or find the cluster, launch the shards, train."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpr-", dir="/tmp")))
    sizes = kaggle_table_sizes(options.scale)
    nodes = None
    if options.address is None:
        try:
            stack.enter_context(loopback_only())
        except PermissionError:
            OUT.print("Without root there is no network of its own: the token alone keeps others out.")
        nodes = stack.enter_context(LocalNodes(folder))
        nodes.start_head()
        for _ in range(options.shards + 1):
            nodes.add()
        nodes.connect()
    else:
        connect(options.address)
    spec = make_spec(options, sizes, options.store or str(folder / "store"))
    settings = ClusterSettings(run=f"demo-{os.getpid()}", report_every=2.0)
    cluster = RayCluster.launch(spec, settings, pending=OUT.print)
    stack.callback(cluster.stop)
    job = Job(options, cluster, spec, nodes)
    job.say(0, f"{spec.shards} shards up, {cluster.record.rows:,} rows, processes {job.pids()}")
    job.train(samples(options, sizes, held_out=False))
    quality = job.quality(samples(options, sizes, held_out=True)) if options.data is None else None
    report(job, quality)
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a Criteo file, plain or gzip; generated samples by default")
    parser.add_argument("--address", help="of a Ray cluster; by default nodes on this machine")
    parser.add_argument(
        "--store", help="checkpoint directory that every node sees; a temporary one by default"
    )
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=DEMO.batch_size)
    parser.add_argument(
        "--scale", type=float, default=0.01, help="share of the rows of Criteo Kaggle's tables"
    )
    parser.add_argument("--save-every", type=int, default=50)
    with ExitStack() as stack:
        run(parser.parse_args(), stack)


if __name__ == "__main__":
    main()
