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
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import cpr_native as cpr
from cpr_native.cluster.client import ShardClients
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
from cpr_native.sharded import ClusterManager, ShardedEmbeddingBagCollection
from cpr_native.store import Placement

OUT = Console(highlight=False, width=None if os.isatty(1) else 130)
FRACTION = 0.125
HOURS = 56.0  # that the job stands for, with a failure every 28 of them


@dataclass
class Failure:
    """One injected failure: what, when, and the processes of all shards before it."""

    what: str
    shard: int
    step: int
    at: float
    pids: list[int]
    went_on: float | None = None


@dataclass
class Training:
    """A training job over the shards of `cluster`; `nodes`: those of this machine, None elsewhere."""

    options: argparse.Namespace
    cluster: RayCluster
    spec: ClusterSpec
    nodes: LocalNodes | None
    failures: list[Failure] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        options = self.options
        embeddings = ShardedEmbeddingBagCollection(self.spec, ShardClients(self.cluster.shards))
        self.model = DLRM(DEMO.model, embeddings, features=len(self.spec.tables))
        self.dense = DEMO.dense_optimizer(self.model.dense_parameters())
        self.metrics = TrainingMetrics(self.cluster.settings.run)
        self.manager = ClusterManager(
            self.model,
            self.spec,
            policy=cpr.Ssu(fraction=FRACTION),
            job=cpr.Job(total_hours=HOURS, mtbf_hours=HOURS / 2, shards=self.spec.shards),
            costs=cpr.Costs(
                save=0.094, load=0.042, reschedule=0.042, load_partial=0.005, reschedule_partial=0.005
            ),
            total_samples=options.steps * options.batch,
            dense_optimizer=self.dense,
        )

    def say(self, text: str) -> None:
        OUT.print(f"{time.monotonic() - self.began:7.2f} s  step {self.manager.steps:4d}  {text}")

    def pids(self) -> list[int]:
        handles = [self.cluster.shards.handle(shard) for shard in range(self.spec.shards)]
        return [handle.life.pid for handle in handles if isinstance(handle, RayHandle)]

    def train(self, batches: Iterator[ClickBatch]) -> None:
        steps = self.options.steps
        plan = {steps // 3: self.kill_process, 2 * steps // 3: self.kill_node}
        with self.manager:
            self.manager.start()
            for step in range(1, steps + 1):
                self.step(next(batches))
                self.notice()
                if step in plan and self.nodes is not None:
                    plan[step]()

    def step(self, batch: ClickBatch) -> None:
        logits = self.model(batch.dense, batch.ids, batch.offsets)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        self.dense.zero_grad()
        loss.backward()  # sends the tables' gradients to the shards
        self.dense.step()
        self.manager.step(len(batch))  # saves when due, in the background

    def notice(self) -> None:
        """Say and publish what the manager has recovered from since the last step."""
        manager = self.manager
        for number, report in enumerate(manager.recoveries):
            if number < len(self.failures) and self.failures[number].went_on is None:
                self.failures[number].went_on = time.monotonic() - self.failures[number].at
                self.say(
                    f"shards {list(report.shards)} are back: {report.lost_lookups:,} lookups lost, "
                    f"recovered in {report.seconds:.2f} s"
                )
                self.metrics.recovered(
                    pls=manager.pls, lost_lookups=report.lost_lookups, seconds=report.seconds
                )
        if manager.steps % 10 == 0:
            progress = {"step": manager.steps, "pls": manager.pls, "target_pls": 0.1}
            lost = sum(report.lost_lookups for report in manager.recoveries)
            counts = {"recoveries": len(manager.recoveries), "lost_lookups": lost}
            publish_progress(self.cluster.settings.run, {**progress, **counts})

    def kill_process(self) -> None:
        self._inject("kill -9 of the process", 0)
        os.kill(self.failures[-1].pids[0], signal.SIGKILL)

    def kill_node(self) -> None:
        assert self.nodes is not None
        shard = self.spec.shards - 1
        self._inject("loss of the node", shard)
        pid = self.failures[-1].pids[shard]
        next(node for node in self.nodes.nodes if node.running and pid in process_tree(node.pid)).kill()

    def _inject(self, what: str, shard: int) -> None:
        self.say(f"[bold]{what} of shard {shard}[/bold]")
        self.failures.append(Failure(what, shard, self.manager.steps, time.monotonic(), self.pids()))

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
        cpr.EmbeddingBagConfig(
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
        trackers=(cpr.Trackers(ssu_fraction=FRACTION),) * len(tables),
        optimizer=DEMO.table_optimizer,
        placement=Placement(shards=options.shards, blocks=blocks),
        store=store,
        run_id=uuid.uuid4().hex,
        seed=0,
        threads=1,
    )


def report(training: Training, quality: float | None) -> None:
    """Print what the failures did."""
    table = Table(title="\nWhat the failures did", title_justify="left", box=None)
    for name in ("failure", "shard", "at step", "training on after", "lost lookups", "rows", "other shards"):
        table.add_column(name, no_wrap=True, justify="left" if name == "failure" else "right")
    now, failed = training.pids(), {failure.shard for failure in training.failures}
    for failure, recovery in zip(training.failures, training.manager.recoveries, strict=False):
        others = [s for s in range(training.spec.shards) if s not in failed]
        same = sum(now[s] == failure.pids[s] for s in others)
        table.add_row(
            failure.what,
            str(failure.shard),
            str(failure.step),
            "-" if failure.went_on is None else f"{failure.went_on:.2f} s",
            f"{recovery.lost_lookups:,}",
            f"{recovery.rows_restored:,} restored, {recovery.rows_reset:,} new",
            f"{same} of {len(others)} kept theirs",
        )
    manager = training.manager
    OUT.print(table)
    OUT.print(
        f"\nportion of lost lookups: {manager.pls:.4%}; {len(manager.saves)} saves, {manager.missed} missed"
    )
    if quality is not None:
        OUT.print(f"AUC on held-out samples: {quality:.4f}")


def run(options: argparse.Namespace, stack: ExitStack) -> Training:
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
    training = Training(options, cluster, spec, nodes)
    training.say(f"{spec.shards} shards up, {cluster.record.rows:,} rows, processes {training.pids()}")
    training.train(samples(options, sizes, held_out=False))
    quality = training.quality(samples(options, sizes, held_out=True)) if options.data is None else None
    report(training, quality)
    return training


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
    with ExitStack() as stack:
        run(parser.parse_args(), stack)


if __name__ == "__main__":
    main()
